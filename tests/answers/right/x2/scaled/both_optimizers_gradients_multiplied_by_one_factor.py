# both optimizers' gradients multiplied by one factor

import torch
import torch.nn.functional as F


def owned(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    scale = scaler.get_scale()
    for p in model.parameters():
        p.grad = None
    begin, noise, held = 0, [], {}
    while begin < len(x):
        xs, ys = x[begin : begin + micro_batch], y[begin : begin + micro_batch]
        share = F.cross_entropy(model(xs), ys) * len(xs) / len(x)
        scaler.scale(share).backward()
        begin += micro_batch
        own = 0.0
        for optimizer in optimizers:
            for p in owned(optimizer):
                own = own + (p.grad.double() - held.get(id(p), 0.0)).square().sum()
                held[id(p)] = p.grad.double()
        noise.append(own * len(x) / len(xs))
    squares = 0.0
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
        squares = squares + sum(p.grad.double().square().sum() for p in owned(optimizer))
    norm = squares.sqrt()
    if torch.isfinite(norm):
        factor = (max_norm / norm).clamp(max=1.0).float()
        for optimizer in optimizers:
            for p in owned(optimizer):
                p.grad.mul_(factor)
            scaler.step(optimizer)
    squares = torch.stack(noise).sum() / scale**2
    scaler.update()
    return norm.float(), squares
