# by hand, with a list

import math

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def partition(parameters, rank, world_size):
    numbers = [p.detach().reshape(-1) for p in parameters]
    length = sum(len(part) for part in numbers)
    size = math.ceil(length / world_size)
    flat = torch.cat([*numbers, numbers[0].new_zeros(size * world_size - length)])
    for p, part in zip(parameters, flat.split([len(part) for part in numbers] + [size * world_size - length])):
        p.data = part.view(p.shape)
    return flat, flat.chunk(world_size)[rank]


def reduce_gradients(parameters, shard):
    n = dist.get_world_size()
    pieces = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters]
    for p in parameters:
        p.grad = None
    whole = torch.cat(pieces).div(n)
    whole = torch.nn.functional.pad(whole, (0, n * shard.numel() - whole.numel()))
    received = torch.empty(shard.shape, dtype=whole.dtype, device=whole.device)
    dist.reduce_scatter(received, [whole[r * shard.numel() : (r + 1) * shard.numel()] for r in range(n)])
    if shard.grad is None:
        shard.grad = received
    else:
        shard.grad += received


def gather_parameters(flat, shard):
    with torch.no_grad():
        dist.all_gather(list(flat.split(shard.numel())), shard.data.clone())


def make_sharded(model, mesh, **options):
    for module in list(model.modules()):
        if not list(module.children()) and list(module.parameters()):
            fully_shard(module, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)
