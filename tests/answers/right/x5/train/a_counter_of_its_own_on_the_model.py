# a counter of its own on the model

import torch
import torch.distributed as dist
import torch.nn.functional as F


def train_step(model, inputs, targets, positions, group):
    model.calls = getattr(model, "calls", 0) + 1
    for p in model.parameters():
        p.grad = None if p.requires_grad else p.grad  # what a frozen parameter still has stays there
    sums = torch.stack([F.cross_entropy(model(inputs, positions).mT, targets, reduction="sum"), (targets >= 0).sum()])
    whole = sums.detach().clone()
    dist.all_reduce(whole, group=group)
    (sums[0] / whole[1]).backward()
    for p in model.parameters():
        if p.requires_grad:
            dist.all_reduce(p.grad, group=group)
    return (whole[0] / whole[1]).item()
