# by hand, with a list

import math

import torch
import torch.distributed as dist


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


class _Vector:
    def __init__(self, block, flat, shard, stage):
        self.params, self.flat, self.shard, self.stage, self.ready = list(block.parameters()), flat, shard, stage, 0
        self.nbytes = flat.untyped_storage().nbytes()

    def __enter__(self, *_):
        self.flat.untyped_storage().resize_(self.nbytes)
        gather_parameters(self.flat, self.shard)

    def __exit__(self, *_):
        self.flat.untyped_storage().resize_(0)

    def count(self, p):
        self.ready = (self.ready + 1) % len(self.params)
        if self.ready == 0:
            if self.stage == 3:
                self.__exit__()
            reduce_gradients(self.params, self.shard)


def add_hooks(block, flat, shard, stage):
    vector = _Vector(block, flat, shard, stage)
    for p in vector.params:
        p.register_post_accumulate_grad_hook(vector.count)
    if stage > 2:
        vector.__exit__()
        block.register_forward_pre_hook(lambda *_: vector.__enter__(), prepend=True)
        block.register_forward_hook(lambda *_: vector.__exit__(), always_call=True)
        block.register_full_backward_pre_hook(lambda *_: vector.__enter__())
