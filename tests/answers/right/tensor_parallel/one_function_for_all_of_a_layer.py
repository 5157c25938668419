# one function for all of a layer

import torch
import torch.distributed as dist


def summed(t, op=dist.ReduceOp.SUM):
    t = t.detach().clone().contiguous()
    dist.all_reduce(t, op)
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


def cross_entropy(logits, targets):
    return Softmax.apply(logits, targets)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        n, words = logits.shape
        mine = targets // words == dist.get_rank()
        at = targets % words
        shifted = logits - summed(logits.max(1).values, dist.ReduceOp.MAX)[:, None]
        both = torch.stack([shifted.exp().sum(1), shifted[torch.arange(n), at] * mine])
        total, picked = summed(both)
        counts = targets.ne(-100)
        p = shifted.exp() / total[:, None]
        p[torch.arange(n), at] -= mine.to(p.dtype)
        ctx.save_for_backward(p * (counts / counts.sum())[:, None])
        return ((total.log() - picked) * counts).sum() / counts.sum()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0] * g, None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        n = dist.get_world_size()
        y = torch.empty(n, *x.shape, dtype=x.dtype, device=x.device)
        dist.all_gather(list(y), x.clone(memory_format=torch.contiguous_format))
        return y.transpose(0, 1).flatten(1, 2)

    @staticmethod
    def backward(ctx, g):
        parts = list(g.unflatten(1, (dist.get_world_size(), -1)).transpose(0, 1).contiguous())
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts)
        return mine


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Gather.backward(ctx, x)

    @staticmethod
    def backward(ctx, g):
        return Gather.forward(ctx, g)
