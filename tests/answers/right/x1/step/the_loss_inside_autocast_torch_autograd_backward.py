# the loss inside autocast, torch.autograd.backward

import torch
import torch.nn.functional as F


def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    model.zero_grad(set_to_none=True)
    with torch.autocast(images.device.type, dtype=dtype, enabled=dtype is not torch.float32):
        loss = F.nll_loss(F.log_softmax(model(images).float(), -1), labels)
    torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
    if scaler is not None:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    bad = any(not p.grad.isfinite().all() for p in model.parameters())
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, foreach=False)
    if scaler is None:
        for optimizer in optimizers:
            optimizer.step()
    else:
        for optimizer in [] if bad else optimizers:
            scaler.step(optimizer)
        scaler.update()
    return loss.detach().clone()
