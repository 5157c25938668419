# once differentiable, queries saved with their scale

from helpers.exercises.reference.x5 import meets, pass_on

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        me, n = dist.get_rank(group), dist.get_world_size(group)
        q = q.unflatten(1, (k.shape[1], -1)) * q.shape[-1] ** -0.5
        kv, t = torch.stack((k, v)), q.shape[-2]
        ctx.hidden = torch.ones(t, t, dtype=torch.bool, device=q.device).triu(1)
        top, total, out = q.new_full(q.shape[:-1], -torch.inf), q.new_zeros(q.shape[:-1]), torch.zeros_like(q)
        for hop in range(n):
            source = (me - hop) % n
            coming = pass_on(kv, group) if hop + 1 < n else lambda: None
            rows, columns = meets(source, me, t // 2)
            s = torch.einsum("bhgid,bhjd->bhgij", q[..., rows, :], kv[0][..., columns, :])
            s = s.masked_fill(ctx.hidden, -torch.inf) if source == me else s
            best = torch.maximum(top[..., rows], s.amax(-1))
            shrink, p = (top[..., rows] - best).exp(), (s - best[..., None]).exp()
            total[..., rows] = total[..., rows] * shrink + p.sum(-1)
            new = torch.einsum("bhgij,bhjd->bhgid", p, kv[1][..., columns, :])
            out[..., rows, :] = out[..., rows, :] * shrink[..., None] + new
            top[..., rows] = best
            kv = coming() if hop + 1 < n else kv
        out /= total[..., None]
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, top + total.log())
        return out.flatten(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        me, n = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        grad = grad.unflatten(1, q.shape[1:3])
        delta = (grad * out).sum(-1)
        kv, dq, half = torch.stack((k, v)), torch.zeros_like(q), q.shape[-2] // 2
        dkv = torch.zeros_like(kv)
        for hop in range(n):
            source = (me - hop) % n
            coming = pass_on(kv, ctx.group) if hop + 1 < n else lambda: None
            rows, columns = meets(source, me, half)
            s = torch.einsum("bhgid,bhjd->bhgij", q[..., rows, :], kv[0][..., columns, :])
            s = s.masked_fill(ctx.hidden, -torch.inf) if source == me else s
            p = (s - lse[..., rows, None]).exp()
            dp = torch.einsum("bhgid,bhjd->bhgij", grad[..., rows, :], kv[1][..., columns, :])
            ds = p * (dp - delta[..., rows, None])
            dq[..., rows, :] += torch.einsum("bhgij,bhjd->bhgid", ds, kv[0][..., columns, :])
            dkv[0][..., columns, :] += torch.einsum("bhgij,bhgid->bhjd", ds, q[..., rows, :])
            dkv[1][..., columns, :] += torch.einsum("bhgij,bhgid->bhjd", p, grad[..., rows, :])
            dkv = pass_on(dkv, ctx.group)()
            kv = coming() if hop + 1 < n else kv
        return (dq * q.shape[-1] ** -0.5).flatten(1, 2), *dkv, None


def ring_attention(q, k, v, group):
    return Scaled.apply(q, k, v, group)
