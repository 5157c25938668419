# one function for all of a layer

import torch
import torch.distributed as dist


def summed(t):
    t = t.detach().clone().contiguous()
    dist.all_reduce(t)
    return t


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return summed(g)


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Column(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x.matmul(weight.t())

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx = summed(dy @ weight) if ctx.needs_input_grad[0] else None
        return dx, dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])


class Row(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        y = x.matmul(weight.t())
        dist.all_reduce(y)
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rows = dy.reshape(-1, dy.shape[-1])
        return dy @ weight, rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0) if ctx.needs_input_grad[2] else None


def column(x, weight):
    return Column.apply(x, weight)


def row(x, weight, bias):
    return Row.apply(x, weight, bias)


def kv_heads_of(rank, ranks, heads, kv_heads):
    group, each = heads // kv_heads, heads // ranks
    return [(rank * each + i) // group for i in range(each)]


def sum_shared(gradient, heads, kv_heads):
    n = dist.get_world_size()
    owners = [set(kv_heads_of(r, n, heads, kv_heads)) for r in range(n)]
    if not any(a & b for i, a in enumerate(owners) for b in owners[:i]):
        return gradient.clone()
    at = gradient.new_zeros(len(gradient), kv_heads)
    for i, head in enumerate(sorted(owners[dist.get_rank()])):
        at[i, head] = 1
    return torch.einsum("hk,k...->h...", at, summed(torch.einsum("hk,h...->k...", at, gradient)))
