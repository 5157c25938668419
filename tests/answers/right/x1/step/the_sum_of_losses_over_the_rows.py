# the sum of losses over the rows

import torch
import torch.nn.functional as F


def forward(model, images, dtype):
    if dtype == torch.float32:
        return model(images)
    with torch.autocast(images.device.type, dtype=dtype):
        return model(images).float()


def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    first, second = optimizers
    first.zero_grad(set_to_none=False), second.zero_grad(set_to_none=False)
    logits = forward(model, images, dtype)
    loss = F.cross_entropy(logits, labels, reduction="sum") / len(labels)
    if scaler:
        loss_to_go_back = scaler.scale(loss)
    else:
        loss_to_go_back = loss
    loss_to_go_back.backward()
    if scaler:
        scaler.unscale_(first), scaler.unscale_(second)
    total = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, total)
    if scaler:
        if total.isfinite():
            scaler.step(first), scaler.step(second)
        scaler.update()
    else:
        first.step(), second.step()
    with torch.no_grad():
        return loss.clone()
