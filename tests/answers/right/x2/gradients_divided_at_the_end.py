# gradients divided at the end

import torch
import torch.nn.functional as F
from torch import nn


def accumulated_step(model, optimizer, loss_fn, x, y, micro_batch):
    optimizer.zero_grad(set_to_none=False)
    summed, rows, at = 0.0, len(x), 0
    while at < rows:
        xs, ys = x[at : at + micro_batch], y[at : at + micro_batch]
        loss = loss_fn(model(xs), ys) * xs.size(0)
        loss.backward()
        summed = summed + loss.detach()
        at += micro_batch
    with torch.no_grad():
        for p in model.parameters():
            p.grad.div_(rows)
    optimizer.step()
    return summed / rows


def token_step(model, optimizer, ids, targets, micro_batch):
    optimizer.zero_grad()
    losses = []
    for xs, ys in zip(torch.split(ids, micro_batch), torch.split(targets, micro_batch)):
        loss = nn.CrossEntropyLoss(reduction="sum", ignore_index=-100)(model(xs).flatten(0, 1), ys.flatten())
        loss.backward()
        losses.append(loss.detach())
    count = targets.ne(-100).sum()
    for p in model.parameters():
        p.grad.mul_(1 / count)
    optimizer.step()
    return torch.stack(losses).sum() / count


def scaled_step(model, optimizer, scaler, x, y, micro_batch, max_norm):
    optimizer.zero_grad()
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch)):
        weight = xs.shape[0] / x.shape[0]
        (scaler.scale(F.cross_entropy(model(xs), ys)) * weight).backward()
    scaler.unscale_(optimizer)
    total = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    for p in model.parameters():
        p.grad.mul_(min(1.0, max_norm / (total.item() + 1e-6)))
    scaler.step(optimizer)
    scaler.update()


def train_epoch(model, optimizer, scheduler, loss_fn, loader, accumulate):
    losses, group = [], []

    def flush():
        optimizer.zero_grad()
        rows = sum(x.size(0) for x, y in group)
        total = torch.zeros(())
        for x, y in group:
            loss = loss_fn(model(x), y) * x.size(0) / rows
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        scheduler.step()
        losses.append(total)
        group.clear()

    for pair in loader:
        group.append(pair)
        if len(group) == accumulate:
            flush()
    if group:
        flush()
    return losses


def with_group_norm(model, groups):
    found = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    for name, old in found:
        parent = model.get_submodule(name.rpartition(".")[0])
        new = nn.GroupNorm(groups, old.num_features, eps=old.eps).to(old.weight)
        with torch.no_grad():
            new.weight.copy_(old.weight)
            new.bias.copy_(old.bias)
        setattr(parent, name.rpartition(".")[2], new.train(old.training))
    return model
