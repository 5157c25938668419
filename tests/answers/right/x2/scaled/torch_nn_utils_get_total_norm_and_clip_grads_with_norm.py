# torch.nn.utils.get_total_norm and clip_grads_with_norm_

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    for optimizer in optimizers:
        optimizer.zero_grad()
    sums, lengths, rows = [torch.zeros_like(p) for p in model.parameters()], [], []
    starts = torch.arange(0, len(x), micro_batch)
    for start in starts.tolist():
        end = min(start + micro_batch, len(x))
        scaled = scaler.scale(cross_entropy(model(x[start:end]), y[start:end]))
        (scaled * ((end - start) / len(x))).backward()
        added = [p.grad - s for p, s in zip(model.parameters(), sums, strict=True)]
        torch._foreach_add_(sums, added)
        lengths.append(get_total_norm(added) / scaler.get_scale() * len(x) / (end - start))
        rows.append(end - start)
    for optimizer in reversed(optimizers):
        scaler.unscale_(optimizer)
    norm = get_total_norm([p.grad for p in model.parameters()])
    overflow = not bool(norm.isfinite())
    if not overflow:
        clip_grads_with_norm_(model.parameters(), max_norm, norm)
    for optimizer in optimizers * (not overflow):
        scaler.step(optimizer)
    scaler.update()
    weights = torch.tensor(rows) / len(x)
    return norm.detach(), (weights * torch.stack(lengths) ** 2).sum()
