# later blocks first, layers of a block as one list

import torch
import torch.distributed as dist
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


def add_hooks(block, flat, shard, stage):
    memory, full, names = flat.untyped_storage(), flat.untyped_storage().nbytes(), dict(block.named_parameters())

    class Gathered(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return y.view_as(y)

        @staticmethod
        def backward(ctx, dy):
            memory.resize_(full)
            gather_parameters(flat, shard)
            return dy

    original = block.forward

    def forward(*args, **kwargs):
        memory.resize_(full)
        gather_parameters(flat, shard)
        y = original(*args, **kwargs)
        memory.resize_(0)
        return Gathered.apply(y)

    def last(_):
        if sum(p.grad is None for p in names.values()) == 0:
            reduce_gradients(list(names.values()), shard)
            memory.resize_(0 if stage == 3 else full)

    for p in names.values():
        p.register_post_accumulate_grad_hook(last)
    if stage == 3:
        block.forward = forward
        memory.resize_(0)
