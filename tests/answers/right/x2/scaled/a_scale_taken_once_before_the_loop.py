# a scale taken once, before the loop

import torch
import torch.nn.functional as F


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    model.zero_grad()
    weights = scaler.scale(torch.ones(len(x), device=x.device) / len(x)).split(micro_batch)
    sums, squares, scale = [0.0 for _ in model.parameters()], 0.0, scaler.get_scale()
    for xs, ys, w in zip(x.split(micro_batch), y.split(micro_batch), weights, strict=True):
        rows = F.cross_entropy(model(xs), ys, reduction="none")
        model.zero_grad()
        rows.backward(w.to(rows))
        own = [p.grad for p in model.parameters()]
        squares += sum(float((g / scale).norm()) ** 2 for g in own) * len(x) / len(xs)
        sums = [s + g for s, g in zip(sums, own)]
    for p, s in zip(model.parameters(), sums):
        p.grad = s
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(list(model.parameters()), max_norm)
    bad = bool(norm.isinf() or norm.isnan())
    while optimizers and not bad:
        scaler.step(optimizers[0])
        optimizers = optimizers[1:]
    scaler.update()
    return float(norm), squares
