# a scale taken once, before the loop

import torch
import torch.nn.functional as F


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    model.zero_grad()
    weights = scaler.scale(torch.ones(len(x), device=x.device) / len(x)).split(micro_batch)
    for xs, ys, w in zip(x.split(micro_batch), y.split(micro_batch), weights, strict=True):
        rows = F.cross_entropy(model(xs), ys, reduction="none")
        rows.backward(w.to(rows))
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(list(model.parameters()), max_norm)
    bad = bool(norm.isinf() or norm.isnan())
    while optimizers and not bad:
        scaler.step(optimizers[0])
        optimizers = optimizers[1:]
    scaler.update()
    return float(norm)
