"""The reference answers of solutions/12_sharding.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import importlib.util
import json
import os
from helpers import Claims, Prediction, check, deepspeed_config, device_name, explore, hint, human_bytes, pick_device, rank_device, ranks_device, run_ranks, show, show_table
from helpers.core.progress_line import progress_line
from helpers.planner.catalog.clusters import CLUSTERS
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

device = pick_device()
everywhere = ranks_device(4)
claims = Claims(device=everywhere)


def partition(parameters, rank, world_size):
    size = -(-sum(p.numel() for p in parameters) // world_size)  # of a shard, rounded up
    flat = parameters[0].data.new_zeros(world_size * size)
    start = 0
    for p in parameters:
        place = flat[start : start + p.numel()].view_as(p)
        place.copy_(p.data)
        p.data = place
        start += p.numel()
    return flat, flat[rank * size : (rank + 1) * size]


def reduce_gradients(parameters, shard):
    n, start = dist.get_world_size(), 0
    whole = shard.data.new_zeros(n * shard.numel())
    for p in parameters:
        if p.grad is not None:
            whole[start : start + p.numel()] = p.grad.flatten()
            p.grad = None
        start += p.numel()
    mine = torch.empty_like(shard.data)
    dist.reduce_scatter_tensor(mine, whole)
    mine /= n  # reduce_scatter adds up; the gradient of the joint batch is the mean
    shard.grad = mine if shard.grad is None else shard.grad + mine


def gather_parameters(flat, shard):
    dist.all_gather_into_tensor(flat, shard.detach())


def add_hooks(block, flat, shard, stage):
    parameters, storage = list(block.parameters()), flat.untyped_storage()

    def gather(*_):
        storage.resize_(flat.nbytes)
        gather_parameters(flat, shard)

    def free(*_):
        storage.resize_(0)

    def reduce_if_last(_):
        if all(p.grad is not None for p in parameters):
            reduce_gradients(parameters, shard)
            if stage == 3:
                free()

    for p in parameters:
        p.register_post_accumulate_grad_hook(reduce_if_last)
    if stage == 3:
        block.register_forward_pre_hook(gather)
        block.register_forward_hook(free)
        block.register_full_backward_pre_hook(gather)
        free()
