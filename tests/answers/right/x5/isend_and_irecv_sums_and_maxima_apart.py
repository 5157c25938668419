# isend and irecv, sums and maxima apart

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F


def shard(tokens, rank, ranks):
    length = tokens.size(1) - 1
    if length % (2 * ranks) != 0:
        raise ValueError(f"{length} is not a multiple of {2 * ranks}")
    size = length // (2 * ranks)
    late = 2 * ranks - 1 - rank
    positions = torch.tensor([*range(rank * size, (rank + 1) * size), *range(late * size, (late + 1) * size)])
    window = tokens.unfold(1, 2, 1)[:, positions]
    return window[..., 0], window[..., 1], positions


def pass_on(x, group):
    n, me = group.size(), group.rank()
    if n == 1:
        return lambda: x
    out, into = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    sending = dist.isend(out, group=group, group_dst=(me + 1) % n)
    receiving = dist.irecv(into, group=group, group_src=(me + n - 1) % n)

    def finish():
        receiving.wait()
        sending.wait()
        return into

    return finish


def chunks_seen(owner, me, q, k, v):
    half = k.size(2) // 2
    if owner < me:
        return 0, q, k[:, :, :half], v[:, :, :half]
    return (half, q[:, :, half:], k, v) if owner > me else (0, q, k, v)


def masked_scores(q, k, owner, me):
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.size(-1)))
    if owner == me:
        i = torch.arange(s.size(-1))
        s = s.where(i[:, None] >= i, torch.tensor(-torch.inf))
    return s


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        n, me = group.size(), group.rank()
        times = q.size(1) // k.size(1)
        top = q.new_full((*q.shape[:-1], 1), -torch.inf)
        total, weighted = torch.zeros_like(top), torch.zeros(q.shape)
        keys, values = k, v
        for step in range(n):
            owner = (me - step) % n
            more = step + 1 < n
            coming = [pass_on(x, group) for x in (keys, values)] if more else []
            start, queries, ks, vs = chunks_seen(owner, me, q, keys, values)
            s = masked_scores(queries, ks.repeat_interleave(times, 1), owner, me)
            old = top[:, :, start:]
            new = torch.maximum(old, s.max(-1, keepdim=True).values)
            shrink, p = torch.exp(old - new), torch.exp(s - new)
            total[:, :, start:] = total[:, :, start:] * shrink + p.sum(-1, keepdim=True)
            weighted[:, :, start:] = weighted[:, :, start:] * shrink + p @ vs.repeat_interleave(times, 1)
            top[:, :, start:] = new
            if more:
                keys, values = (finish() for finish in coming)
        out = weighted / total
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, top + total.log())
        return out

    @staticmethod
    def backward(ctx, dout):
        group = ctx.group
        n, me = group.size(), group.rank()
        q, k, v, out, lse = ctx.saved_tensors
        times = q.size(1) // k.size(1)
        row = (dout * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros(q.shape), torch.zeros(k.shape), torch.zeros(v.shape)
        keys, values = k, v
        for step in range(n):
            owner = (me - step) % n
            more = step + 1 < n
            coming = [pass_on(x, group) for x in (keys, values)] if more else []
            start, queries, ks, vs = chunks_seen(owner, me, q, keys, values)
            wide_k, wide_v, g = ks.repeat_interleave(times, 1), vs.repeat_interleave(times, 1), dout[:, :, start:]
            p = torch.exp(masked_scores(queries, wide_k, owner, me) - lse[:, :, start:])
            ds = p * (g @ wide_v.transpose(-1, -2) - row[:, :, start:]) / math.sqrt(q.size(-1))
            dq[:, :, start:] += ds @ wide_k
            dk[:, :, : ks.size(2)] += (ds.transpose(-1, -2) @ queries).unflatten(1, (-1, times)).sum(2)
            dv[:, :, : vs.size(2)] += (p.transpose(-1, -2) @ g).unflatten(1, (-1, times)).sum(2)
            going = [pass_on(x, group) for x in (dk, dv)]
            dk, dv = (finish() for finish in going)
            if more:
                keys, values = (finish() for finish in coming)
        return dq, dk, dv, None


def ring_attention(q, k, v, group):
    return Ring.apply(q, k, v, group)


def train_step(model, inputs, targets, positions, group):
    params = [p for p in model.parameters() if p.requires_grad]
    logits = model(inputs, positions)
    total = F.cross_entropy(logits.transpose(1, 2), targets, reduction="sum", ignore_index=-100)
    both = torch.stack([total.detach().double(), targets.ne(-100).sum().double()])
    dist.all_reduce(both, group=group)
    grads = torch.autograd.grad(total, params)
    for p, g in zip(params, grads):
        g = g / both[1].to(g.dtype)
        dist.all_reduce(g, group=group)
        p.grad = g
    return float(both[0] / both[1])
