"""The reference answers of solutions/04_x2_batch_256.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

from helpers import MemoryMeter, SmallCNN, check, device_name, digits, hint, human_bytes, pick_device
import torch
import torch.nn.functional as F
from torch import nn

device = pick_device()


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    optimizer.zero_grad()
    total = torch.zeros((), device=x.device)
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = loss_fn(model(xs), ys) * (len(xs) / len(x))
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total


def token_step(model, optimizer, ids, targets, micro_batch):
    optimizer.zero_grad()
    counted = (targets != -100).sum()
    total = torch.zeros((), device=ids.device)
    for xs, ys in zip(ids.split(micro_batch), targets.split(micro_batch), strict=True):
        logits = model(xs)  # (n, T, vocabulary)
        loss = F.cross_entropy(logits.flatten(0, 1), ys.flatten(), reduction="sum") / counted
        loss.backward()
        total = total + loss.detach()
    optimizer.step()
    return total


def scaled_step(model, optimizer, scaler, x, y, micro_batch, max_norm):
    optimizer.zero_grad()
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = F.cross_entropy(model(xs), ys) * (len(xs) / len(x))
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    losses, rows, total = [], 0, 0.0

    def update():
        for parameter in model.parameters():
            parameter.grad /= rows  # the group's size is known only now
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(total / rows)

    optimizer.zero_grad()
    micro_batches = 0
    for x, y in loader:
        loss = loss_fn(model(x), y) * len(x)  # the sum over rows
        loss.backward()
        rows, total = rows + len(x), total + loss.item()
        micro_batches += 1
        if micro_batches == accumulate:
            update()
            rows, total, micro_batches = 0, 0.0, 0
    if micro_batches:
        update()
    return losses


def with_group_norm(model, groups):
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                norm = nn.GroupNorm(groups, child.num_features, eps=child.eps)
                norm.to(child.weight.device, child.weight.dtype).train(child.training)
                norm.load_state_dict({"weight": child.weight, "bias": child.bias})
                setattr(module, name, norm)
    return model
