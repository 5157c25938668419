# one all-reduce of all gradients in one vector

import torch
import torch.distributed as dist
import torch.nn.functional as F


def train_step(model, inputs, targets, positions, group):
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        p.grad = None
    logits = model(inputs, positions)
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="sum")
    numbers = torch.stack([losses.detach().double(), (targets != -100).sum().double()])
    dist.all_reduce(numbers, group=group)
    losses.backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([g.flatten() for g in grads])
    dist.all_reduce(flat, group=group)
    flat /= numbers[1].to(flat)
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters])):
        p.grad = part.view_as(p)
    return (numbers[0] / numbers[1]).item()
