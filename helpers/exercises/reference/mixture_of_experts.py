"""The reference answers of solutions/16_mixture_of_experts.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import copy
import math
from helpers import Claims, MemoryMeter, Prediction, check, compare, count_flops, device_name, english, hint, human_bytes, model_flops, parallel_map, pick_device, rank_device, ranks_device, run_ranks, show, show_table, sign_of_life
from helpers.exercises.mixture_of_experts import pictures
from helpers.exercises.mixture_of_experts.parcels import Parcels
from helpers.exercises.mixture_of_experts.trained import batch_at, loss_on_test_text, train
from helpers.exercises.mixture_of_experts.window_model import WIDTH, WindowModel
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)
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


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.parts = send, receive, group
        arrived = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), receive, send, group=group)
        return arrived

    @staticmethod
    def backward(ctx, gradient):
        send, receive, group = ctx.parts
        back = gradient.new_empty(sum(send), *gradient.shape[1:])
        dist.all_to_all_single(back, gradient.contiguous(), send, receive, group=group)
        return back, None, None, None


def expert_parallel(x, chosen, weights, up, down, group):
    ranks, own = dist.get_world_size(group), len(up)
    rows, counts, source = permute(x, chosen, ranks * own)
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts, group=group)
    coming = coming.view(ranks, own)  # rows from each rank for each expert of this one
    send, receive = torch.stack([counts.view(ranks, own), coming]).sum(dim=2).tolist()  # waits once for both
    arrived = Exchange.apply(rows, send, receive, group)
    owned = torch.arange(own, device=x.device).repeat(ranks)
    expert = owned.repeat_interleave(coming.flatten(), output_size=sum(receive))
    order = expert.argsort(stable=True)
    results = grouped(arrived[order], coming.sum(dim=0), up, down)
    results = torch.empty_like(results).index_copy(0, order, results)  # back in the order of arrival
    return unpermute(Exchange.apply(results, receive, send, group), source, weights)


def average_gradients(shared, experts, mesh):
    for parameter in shared:
        dist.all_reduce(parameter.grad)
    for parameter in experts:
        dist.all_reduce(parameter.grad, group=mesh.get_group("replica"))
    for parameter in (*shared, *experts):
        parameter.grad /= mesh.size()
