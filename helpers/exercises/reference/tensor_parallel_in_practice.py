"""The reference answers of solutions/13b_tensor_parallel_in_practice.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

from helpers import Claims, Collectives, MemoryMeter, Prediction, RankError, check, device_name, explore, hint, human_bytes, pick_device, rank_device, ranks_device, run_ranks, show, show_table
from helpers.exercises.tensor_parallel.built import Leave
from helpers.planner.catalog.clusters import find_cluster
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)
claims = Claims(device=where)


def cross_entropy(logits, targets):
    held = logits.shape[1]  # tokens of the vocabulary on this rank
    largest = logits.detach().amax(dim=1)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)  # a constant: it cancels
    shifted = logits - largest[:, None]
    exponentials = Leave.apply(shifted.exp().sum(dim=1))  # (n,)
    local = targets - dist.get_rank() * held
    here = (local >= 0) & (local < held)
    picked = shifted.gather(1, local.clamp(0, held - 1)[:, None])[:, 0]
    picked = Leave.apply(picked.where(here, torch.zeros_like(picked)))  # one rank has it, the others add 0
    counts = targets != -100
    return ((exponentials.log() - picked) * counts).sum() / counts.sum()


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        n, mine = dist.get_world_size(), x.contiguous()
        full = mine.new_empty(n * len(mine), *mine.shape[1:])
        dist.all_gather_into_tensor(full, mine)
        tokens = full.chunk(n)
        return torch.cat(tokens, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        parts = torch.cat(gradient.chunk(dist.get_world_size(), dim=1))  # a contiguous copy, rank after rank
        added = parts.new_empty(len(gradient), *parts.shape[1:])
        dist.reduce_scatter_tensor(added, parts)
        return added


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Gather.backward(ctx, x)

    @staticmethod
    def backward(ctx, gradient):
        return Gather.forward(ctx, gradient)
