# by index, in one list

import torch
import torch.nn.functional as F
from torch import nn


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    n = x.shape[0]
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    weighted = []
    for start in range(0, n, micro_batch):
        end = min(start + micro_batch, n)
        loss = loss_fn(model(x[start:end]), y[start:end])
        (loss * (end - start) / n).backward()
        weighted.append(loss.item() * (end - start) / n)
    optimizer.step()
    return torch.tensor(sum(weighted))


def token_step(model, optimizer, ids, targets, micro_batch):
    model.zero_grad()
    valid = int((targets >= 0).sum())
    summed = 0.0
    for start in range(0, len(ids), micro_batch):
        y = targets[start : start + micro_batch]
        logits = model(ids[start : start + micro_batch])
        rows = F.cross_entropy(logits.transpose(1, 2), y, reduction="none").sum()
        (rows / valid).backward()
        summed += rows.detach().item()
    optimizer.step()
    return torch.tensor(summed / valid)


def scaled_step(model, optimizer, scaler, x, y, micro_batch, max_norm):
    model.zero_grad()
    factor = scaler.scale(torch.ones(()))
    for start in range(0, len(x), micro_batch):
        part = slice(start, start + micro_batch)
        loss = F.cross_entropy(model(x[part]), y[part], reduction="sum") / len(x)
        loss.backward(gradient=factor)
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], max_norm)
    scaler.step(optimizer)
    scaler.update()


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    from itertools import islice

    stream, losses = iter(loader), []
    while group := list(islice(stream, accumulate)):
        rows = sum(len(x) for x, _ in group)
        optimizer.zero_grad()
        loss = 0.0
        for x, y in group:
            part = loss_fn(model(x), y) * (len(x) / rows)
            part.backward()
            loss += float(part.detach())
        optimizer.step()
        scheduler.step()
        losses.append(loss)
    return losses


def with_group_norm(model, groups):
    def replace(parent):
        for name, child in list(parent.named_children()):
            if type(child) is nn.BatchNorm2d:
                new = nn.GroupNorm(groups, child.num_features, child.eps, dtype=child.weight.dtype)
                new.weight, new.bias = child.weight, child.bias
                new.training = child.training
                parent.add_module(name, new)
            else:
                replace(child)

    replace(model)
    return model
