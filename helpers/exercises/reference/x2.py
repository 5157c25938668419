"""The reference answers of solutions/04_x2_batch_256.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import io
from helpers import MemoryMeter, SmallCNN, check, device_name, digits, hint, human_bytes, pick_device
import torch
import torch.nn.functional as F
from torch import nn

device = pick_device()


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch, all_reduce):
    optimizer.zero_grad()
    sums = 0  # the loss, the count
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        total, count = loss_fn(model(xs), ys)
        total.backward()
        sums = sums + torch.stack([total.detach(), count.to(total)])
    all_reduce(sums)
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:  # the other rank may have one, and waits for ours
                parameter.grad = torch.zeros_like(parameter)
            all_reduce(parameter.grad)
            parameter.grad /= sums[1]
    optimizer.step()
    return sums[0] / sums[1]


def added(model, before):
    """Return what has been added to each .grad since it was `before`, and copies of .grad for the next call."""
    now = [p.grad.clone() for p in model.parameters()]
    return [g - b for g, b in zip(now, before, strict=True)], now


def scaled_step(model, optimizers, scaler, x, y, micro_batch, max_norm):
    before, squares, scale = [torch.zeros_like(p) for p in model.parameters()], 0.0, scaler.get_scale()
    for optimizer in optimizers:
        optimizer.zero_grad()
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = F.cross_entropy(model(xs), ys) * (len(xs) / len(x))
        scaler.scale(loss).backward()
        gradients, before = added(model, before)
        own = sum((g / scale).square().sum() for g in gradients)
        squares = squares + own * (len(x) / len(xs))
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if norm.isfinite():  # GradScaler would skip only the optimizer whose own gradient overflowed
        for optimizer in optimizers:
            scaler.step(optimizer)
    scaler.update()
    return norm, squares


def gradients_of(model):
    """Return copies of the gradients by parameter name, without those that are None."""
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def put_gradients(model, gradients):
    """Give each parameter a copy of its gradient in `gradients`; None where it has none there."""
    for name, parameter in model.named_parameters():
        gradient = gradients.get(name)
        parameter.grad = None if gradient is None else gradient.clone()


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate, state=None, stop_after=None):
    state = state or {"position": 0, "rows": 0, "total": 0.0, "gradients": {}}
    position, rows, total = state["position"], state["rows"], state["total"]
    put_gradients(model, state["gradients"])
    losses = []

    def update():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= rows  # the group's size is known only now
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(total / rows)

    for taken, (x, y) in enumerate(loader(position), 1):
        loss = loss_fn(model(x), y) * len(x)  # the sum over rows
        loss.backward()
        rows, total = rows + len(x), total + loss.detach()
        position += 1
        if position % accumulate == 0:
            update()
            rows, total = 0, 0.0
        if taken == stop_after:
            gradients = gradients_of(model)
            return losses, {"position": position, "rows": rows, "total": total, "gradients": gradients}
    if rows:
        update()
    return losses, None
