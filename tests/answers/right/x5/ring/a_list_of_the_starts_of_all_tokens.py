# a list of the starts of all tokens

from itertools import pairwise

import torch
import torch.distributed as dist


def docs_of(lengths):
    edges = [0]
    for n in lengths:
        edges.append(edges[-1] + n)
    return edges


def span(row, column, size, lengths):
    a0, b0 = row * size, column * size
    starts = [lo for lo, hi in pairwise(docs_of(lengths)) for _ in range(lo, hi)][a0 : a0 + size]
    rows = torch.arange(a0, a0 + size)[:, None]
    mask = torch.stack([torch.tensor([starts[i] <= j <= a0 + i for j in range(b0, b0 + size)]) for i in range(size)])
    return mask if bool(mask.any()) else None


def exchange(x, group):
    ranks = dist.get_process_group_ranks(group)
    me = dist.get_group_rank(group, dist.get_rank())
    if len(ranks) == 1:
        return x
    x = x.contiguous()
    y = torch.empty_like(x)
    send, receive = dist.isend(x, ranks[(me + 1) % len(ranks)], group), dist.irecv(y, ranks[me - 1], group)
    send.wait()
    receive.wait()
    return y


class OwnRing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, order, lengths, group):
        n, me = group.size(), group.rank()
        mine = order[me]
        size = q.shape[2] // len(mine)
        rep = q.shape[1] // k.shape[1]
        out = torch.zeros(q.shape, dtype=torch.float32)
        lse = torch.full(q.shape[:3], -1e30)
        kk, vv = k, v
        for step in range(n):
            theirs = order[(me - step) % n]
            for a, row in enumerate(mine):
                for b, column in enumerate(theirs):
                    mask = span(row, column, size, lengths)
                    if mask is None:
                        continue
                    i, j = slice(a * size, a * size + size), slice(b * size, b * size + size)
                    keys = kk[:, :, j].float().repeat_interleave(rep, 1)
                    values = vv[:, :, j].float().repeat_interleave(rep, 1)
                    s = torch.einsum("bhid,bhjd->bhij", q[:, :, i].float() / q.shape[-1] ** 0.5, keys)
                    s = torch.where(mask, s, torch.tensor(-1e30))
                    top = torch.logsumexp(s, -1)
                    part = torch.einsum(
                        "bhij,bhjd->bhid", torch.where(mask, (s - top[..., None]).exp(), torch.zeros(())), values
                    )
                    some = mask.any(-1)
                    top = torch.where(some, top, torch.tensor(-1e30))
                    both = torch.logaddexp(lse[:, :, i], top)
                    both = torch.maximum(both, torch.tensor(-1e30))
                    out[:, :, i] = (
                        out[:, :, i] * (lse[:, :, i] - both).exp()[..., None]
                        + part * (top - both).exp()[..., None] * some[:, None]
                    )
                    lse[:, :, i] = both
            if step + 1 < n:
                kk, vv = exchange(torch.stack((kk, vv)), group)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.args = (order, lengths, group)
        return out.bfloat16()

    @staticmethod
    def backward(ctx, g):
        q, k, v, out, lse = ctx.saved_tensors
        order, lengths, group = ctx.args
        n, me = group.size(), group.rank()
        mine = order[me]
        size = q.shape[2] // len(mine)
        h, rep = k.shape[1], q.shape[1] // k.shape[1]
        delta = torch.einsum("bhid,bhid->bhi", g.float(), out)
        dq = torch.zeros(q.shape, dtype=torch.float32)
        kk, vv = k, v
        back = torch.zeros(2, *k.shape)
        for step in range(n):
            theirs = order[(me - step) % n]
            for a, row in enumerate(mine):
                for b, column in enumerate(theirs):
                    mask = span(row, column, size, lengths)
                    if mask is None:
                        continue
                    i, j = slice(a * size, a * size + size), slice(b * size, b * size + size)
                    qi, gi = q[:, :, i].float(), g[:, :, i].float()
                    keys = kk[:, :, j].float().repeat_interleave(rep, 1)
                    values = vv[:, :, j].float().repeat_interleave(rep, 1)
                    s = torch.einsum("bhid,bhjd->bhij", qi / q.shape[-1] ** 0.5, keys)
                    p = (s - lse[:, :, i, None]).masked_fill(~mask, -1e30).exp()
                    ds = p * (torch.einsum("bhid,bhjd->bhij", gi, values) - delta[:, :, i, None]) / q.shape[-1] ** 0.5
                    dq[:, :, i] += torch.einsum("bhij,bhjd->bhid", ds, keys)
                    back[0][:, :, j] += torch.einsum("bhij,bhid->bhjd", ds, qi).unflatten(1, (h, rep)).sum(2)
                    back[1][:, :, j] += torch.einsum("bhij,bhid->bhjd", p, gi).unflatten(1, (h, rep)).sum(2)
            if step + 1 < n:
                kk, vv = exchange(torch.stack((kk, vv)), group)
            back = exchange(back, group)
        return dq.bfloat16(), back[0].bfloat16(), back[1].bfloat16(), None, None, None


def ring_attention(q, k, v, order, lengths, group):
    return OwnRing.apply(q, k, v, order, lengths, group)
