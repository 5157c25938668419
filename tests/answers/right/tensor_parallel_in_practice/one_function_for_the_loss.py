# one function for the loss

import torch
import torch.distributed as dist


def summed(t, op=dist.ReduceOp.SUM):
    t = t.detach().clone().contiguous()
    dist.all_reduce(t, op)
    return t


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
