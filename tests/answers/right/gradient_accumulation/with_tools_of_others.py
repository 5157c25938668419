# with tools of others

import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def accumulate(model, x, y, micro_batch):
    summed = nn.CrossEntropyLoss(reduction="sum")
    total = torch.zeros((), dtype=x.dtype)
    parameters = list(model.parameters())
    for xs, ys in DataLoader(TensorDataset(x, y), batch_size=micro_batch):
        loss = summed(model(xs), ys) / len(y)
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            p.grad = gradient if p.grad is None else p.grad + gradient
        total += loss.detach()
    return total


def accumulate_tokens(model, ids, targets, micro_batch):
    loss_fn = nn.CrossEntropyLoss(ignore_index=-100, reduction="none")
    share = 1 / (targets != -100).sum().double()
    means = []
    for xs, ys in zip(torch.split(ids, micro_batch), torch.split(targets, micro_batch)):
        loss = (loss_fn(model(xs).transpose(1, 2), ys) * share).sum()
        loss.backward()
        means.append(loss.detach())
    return torch.stack(means).sum()


def largest_micro_batch(peak_bytes, budget, most):
    sizes = [most // 2, most]
    each, fixed = np.polyfit(sizes, [peak_bytes(size) for size in sizes], 1)
    rows = min(math.floor((budget - fixed) / each + 1e-6), most)
    if rows < 1 or peak_bytes(1) > budget:
        return 0
    return rows


def accumulate_replica(replica, x, y, micro_batch):
    loader = DataLoader(TensorDataset(x, y), batch_size=micro_batch)
    total = torch.zeros((), dtype=x.dtype)
    for number, (xs, ys) in enumerate(loader, 1):
        replica.require_backward_grad_sync = number == len(loader)  # what no_sync() sets
        loss = nn.functional.cross_entropy(replica(xs), ys, reduction="sum") / len(y)
        loss.backward()
        total += loss.detach()
    return total
