# torch.nn.utils.get_total_norm and clip_grads_with_norm_

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    for optimizer in optimizers:
        optimizer.zero_grad()
    starts = torch.arange(0, len(x), micro_batch)
    for start in starts.tolist():
        end = min(start + micro_batch, len(x))
        scaled = scaler.scale(cross_entropy(model(x[start:end]), y[start:end]))
        (scaled * ((end - start) / len(x))).backward()
    for optimizer in reversed(optimizers):
        scaler.unscale_(optimizer)
    norm = get_total_norm([p.grad for p in model.parameters()])
    overflow = not bool(norm.isfinite())
    if not overflow:
        clip_grads_with_norm_(model.parameters(), max_norm, norm)
    for optimizer in optimizers * (not overflow):
        scaler.step(optimizer)
    scaler.update()
    return norm.detach()
