"""The reference answers of solutions/16b_expert_parallel.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
from helpers import Claims, MemoryMeter, Prediction, check, device_name, english, hint, human_bytes, parallel_map, pick_device, rank_device, ranks_device, run_ranks, show, show_table, sign_of_life
from helpers.exercises.expert_parallel import pictures
from helpers.exercises.expert_parallel.parcels import Parcels
from helpers.exercises.mixture_of_experts.built import MoE, grouped, nudge, permute, unpermute
from helpers.exercises.mixture_of_experts.trained import batch_at, train
from helpers.exercises.mixture_of_experts.window_model import WIDTH, WindowModel
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)
claims = Claims(device=where)


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
