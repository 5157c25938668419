# functional collectives

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return funcol.all_reduce(g.contiguous(), "sum", dist.group.WORLD).clone()


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return funcol.all_reduce(x.contiguous(), "sum", dist.group.WORLD).clone()

    @staticmethod
    def backward(ctx, g):
        return g.clone()


def column(x, weight):
    return torch.matmul(Enter.apply(x), weight.mT)


def row(x, weight, bias):
    y = Leave.apply((x.unsqueeze(-2) * weight).sum(-1))
    if bias is not None:
        y = torch.add(y, bias)
    return y


def kv_heads_of(rank, ranks, heads, kv_heads):
    serving = [kv for kv in range(kv_heads) for _ in range(heads // kv_heads)]
    return [serving[head] for head in range(heads) if head * ranks // heads == rank]


def sum_shared(gradient, heads, kv_heads):
    n, rank = dist.get_world_size(), dist.get_rank()
    holders = {kv: [r for r in range(n) if kv in kv_heads_of(r, n, heads, kv_heads)] for kv in range(kv_heads)}
    if all(len(ranks) == 1 for ranks in holders.values()):
        return gradient
    shared = [kv for kv, ranks in holders.items() if len(ranks) > 1]
    mine = [kv for kv, ranks in holders.items() if rank in ranks]
    zero = torch.zeros_like(gradient[0])
    message = torch.stack([gradient[mine.index(kv)] if kv in mine else zero for kv in shared])
    dist.all_reduce(message)
    return torch.stack([message[shared.index(kv)] if kv in shared else gradient[i] for i, kv in enumerate(mine)])
