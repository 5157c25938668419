# torch.func.functional_call

import torch
import torch.nn.functional as F


def train_step(model, optimizers, scaler, images, labels, dtype, max_norm):
    model.zero_grad()
    named = dict(model.named_parameters())
    with torch.autocast(images.device.type, dtype, dtype != torch.float32):
        logits = torch.func.functional_call(model, named, (images,))
    loss = F.cross_entropy(logits.to(torch.float32), labels)
    scaled = loss if scaler is None else scaler.scale(loss)
    grads = torch.autograd.grad(scaled, list(named.values()))
    for p, g in zip(named.values(), grads, strict=True):
        p.grad = g.detach()
    if scaler is not None:
        tuple(map(scaler.unscale_, optimizers))
    norm = torch.nn.utils.clip_grad_norm_(named.values(), max_norm)
    if scaler is None or norm.isfinite():
        for optimizer in optimizers:
            scaler.step(optimizer) if scaler is not None else optimizer.step()
    if scaler is not None:
        scaler.update()
    return loss.detach()
