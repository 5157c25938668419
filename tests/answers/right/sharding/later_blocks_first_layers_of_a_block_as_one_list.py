# later blocks first, layers of a block as one list

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parameters_to_vector


def partition(parameters, rank, world_size):
    vector = parameters_to_vector(parameters).detach()
    missing = -len(vector) % world_size
    flat = torch.cat([vector, torch.zeros(missing).to(vector)])
    torch.nn.utils.vector_to_parameters(flat[: len(vector)], parameters)
    shards = flat.view(world_size, -1)
    return flat, shards[rank]


def reduce_gradients(parameters, shard):
    n, size = dist.get_world_size(), shard.numel()
    outgoing = [torch.zeros(size).to(shard.data) for _ in range(n)]
    at = 0
    for p in parameters:
        if p.grad is not None:
            for i, number in enumerate(p.grad.flatten()):
                outgoing[(at + i) // size][(at + i) % size] = number
        p.grad = None
        at += p.numel()
    arrived = torch.zeros(size).to(shard.data)
    dist.reduce_scatter(arrived, outgoing, op=dist.ReduceOp.SUM)
    arrived.mul_(1 / n)
    if shard.grad is not None:
        arrived.add_(shard.grad)
    shard.grad = arrived


def gather_parameters(flat, shard):
    received = [torch.empty_like(shard.data) for _ in range(dist.get_world_size())]
    dist.all_gather(received, shard.data)
    flat.copy_(torch.cat(received))


def make_sharded(model, mesh, **options):
    for block in reversed(model.blocks):
        fully_shard([block.norm, block.up, block.down], mesh=mesh, **options)
    fully_shard([model.enter, model.leave], mesh=mesh, **options) if hasattr(model.enter, "weight") else None
    return fully_shard(model, mesh=mesh, **options)
