# setup_context, and a mask in an lru_cache

import functools

from helpers.exercises.reference.x5 import meets, pass_on

import torch
import torch.distributed as dist


@functools.lru_cache
def added(t, device):
    return torch.full((t, t), -torch.inf, device=device).triu(1)


def scores_of(q, k, own):
    s = q @ k.unsqueeze(2).mT * q.shape[-1] ** -0.5
    return s + added(s.shape[-1], s.device) if own else s


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(q, k, v, group):
        me, n = dist.get_rank(group), dist.get_world_size(group)
        q = q.unflatten(1, (k.shape[1], -1))
        out, lse, block = torch.zeros_like(q), q.new_full(q.shape[:-1], -torch.inf), torch.stack([k, v])
        for step in range(n):
            source = (me - step) % n
            wait = pass_on(block, group) if step < n - 1 else None
            mine, theirs = meets(source, me, q.shape[-2] // 2)
            s = scores_of(q[..., mine, :], block[0][..., theirs, :], source == me)
            part_lse = s.logsumexp(-1)
            part = s.softmax(-1) @ block[1][..., theirs, :].unsqueeze(2)
            share = torch.sigmoid(part_lse - lse[..., mine])[..., None]
            out[..., mine, :] += share * (part - out[..., mine, :])
            lse[..., mine] = torch.logaddexp(lse[..., mine], part_lse)
            block = wait() if wait else block
        return out.flatten(1, 2), lse

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, ctx.group = inputs
        out, lse = output
        ctx.mark_non_differentiable(lse)
        ctx.save_for_backward(q, k, v, out, lse)

    @staticmethod
    def backward(ctx, grad, _):
        q, k, v, out, lse = ctx.saved_tensors
        me, n = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        q, grad, out = (x.unflatten(1, (k.shape[1], -1)) for x in (q, grad, out))
        delta, block, dq = (grad * out).sum(-1, keepdim=True), torch.stack([k, v]), torch.zeros_like(q)
        d_block, scale = torch.zeros_like(block), q.shape[-1] ** -0.5
        for step in range(n):
            source = (me - step) % n
            wait = pass_on(block, ctx.group) if step < n - 1 else None
            mine, theirs = meets(source, me, q.shape[-2] // 2)
            q_, g_, k_, v_ = q[..., mine, :], grad[..., mine, :], block[0][..., theirs, :], block[1][..., theirs, :]
            p = (scores_of(q_, k_, source == me) - lse[..., mine, None]).exp()
            ds = p * (g_ @ v_.unsqueeze(2).mT - delta[..., mine, :]) * scale
            dq[..., mine, :] += ds @ k_.unsqueeze(2)
            d_block[0][..., theirs, :] += (ds.mT @ q_).sum(2)
            d_block[1][..., theirs, :] += (p.mT @ g_).sum(2)
            d_block = pass_on(d_block, ctx.group)()
            block = wait() if wait else block
        return dq.flatten(1, 2), d_block[0], d_block[1], None


def ring_attention(q, k, v, group):
    return Attention.apply(q, k, v, group)[0]
