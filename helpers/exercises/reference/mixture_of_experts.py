"""The reference answers of solutions/16_mixture_of_experts.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import copy
import math
from helpers import Claims, MemoryMeter, Prediction, check, compare, count_flops, device_name, english, hint, human_bytes, model_flops, parallel_map, pick_device, show, show_table, sign_of_life
import torch
import torch.nn.functional as F
from torch import nn

device = pick_device()
claims = Claims(device=device)


def route(logits, k, bias=None):
    probabilities = logits.softmax(dim=1)
    chosen = (probabilities if bias is None else probabilities + bias).topk(k, dim=1).indices
    weights = probabilities.gather(1, chosen)
    return chosen, weights / weights.sum(dim=1, keepdim=True)


def permute(x, chosen, experts):
    flat = chosen.flatten()
    source = flat.argsort(stable=True)
    return x[source // chosen.shape[1]], F.one_hot(flat, experts).sum(dim=0), source


def grouped(rows, counts, up, down):
    pieces = rows.split(counts.tolist())
    return torch.cat([F.gelu(piece @ u.T) @ d.T for piece, u, d in zip(pieces, up, down, strict=True)])


def unpermute(rows, source, weights):
    placed = torch.empty_like(rows).index_copy(0, source, rows)
    return (placed.view(*weights.shape, rows.shape[1]) * weights[:, :, None]).sum(dim=1)


def grouped_kernel(rows, counts, up, down):
    ends = counts.cumsum(dim=0).to(torch.int32)
    hidden = F.gelu(F.grouped_mm(rows, up.mT, offs=ends))
    return F.grouped_mm(hidden, down.mT, offs=ends)


def balance_loss(logits, chosen):
    experts = logits.shape[1]
    f = F.one_hot(chosen.flatten(), experts).sum(dim=0) / chosen.numel()
    return experts * (f * logits.softmax(dim=1).mean(dim=0)).sum()


def nudge(bias, counts, rate):
    bias += rate * torch.sign(counts.float().mean() - counts)


def within_capacity(chosen, experts, capacity):
    flat = chosen.flatten()
    place = F.one_hot(flat, experts).cumsum(dim=0).gather(1, flat[:, None])  # 1 for the first that names its expert
    return (place <= capacity).view_as(chosen)
