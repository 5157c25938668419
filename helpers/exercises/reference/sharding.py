"""The reference answers of solutions/12_sharding.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from helpers import Claims, GiB, MemoryMeter, MiB, ParallelConfig, Prediction, Recipe, check, deepspeed_config, device_name, explore, hint, human_bytes, pick_device, planned, rank_device, ranks_device, run_ranks, show, text_table
from helpers.core.progress_line import progress_line
from helpers.exercises.sharding import drawings
from helpers.exercises.sharding.blocks import Blocks, MLPBlock, rank_rows
from helpers.exercises.sharding.diary import Diary
from helpers.exercises.sharding.noted_graphs import NotedGraphs
from helpers.exercises.sharding.trained import joint, train, worst
from helpers.planner.catalog.clusters import CLUSTERS
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_model_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, get_total_norm

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


def make_sharded(model, mesh, **options):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)  # what is outside the blocks, and the root that coordinates them


def accumulated_step(model, optimizer, micro_batches, limit):
    rows, total = sum(len(x) for x, _ in micro_batches), 0.0
    for i, (x, y) in enumerate(micro_batches, 1):
        model.set_requires_gradient_sync(i == len(micro_batches))
        loss = F.mse_loss(model(x), y) * (len(x) / rows)
        loss.backward()
        total += loss.detach()
    norm = clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    optimizer.zero_grad()
    return total, norm.full_tensor()
