# isend and irecv, sums and maxima apart

import itertools
import math
from bisect import bisect

import torch
import torch.distributed as dist
import torch.nn.functional as F


def deal(lengths, ranks, chunk):
    tokens = sum(lengths)
    if tokens % chunk != 0 or tokens // chunk % ranks != 0:
        raise ValueError(f"{tokens} tokens, chunks of {chunk}, {ranks} ranks")
    work = [0] * (tokens // chunk)
    at = 0
    for length in lengths:
        for sees in range(1, length + 1):
            work[at // chunk] += sees
            at += 1
    hands = [[] for _ in range(ranks)]
    for amount, negative in sorted(((w, -i) for i, w in enumerate(work)), reverse=True):
        open_hands = [hand for hand in hands if len(hand) * ranks < len(work)]
        min(open_hands, key=lambda hand: sum(work[i] for i in hand)).append(-negative)
    for hand in hands:
        hand.sort()
    return hands


def shard(tokens, lengths, order, rank):
    chunk = tokens.size(1) // sum(len(chunks) for chunks in order)
    where = torch.tensor([p for c in order[rank] for p in range(c * chunk, (c + 1) * chunk)])
    place = torch.tensor([p for length in lengths for p in range(length)])
    following = F.pad(tokens[:, 1:], (0, 1), value=-100)
    last = F.pad(place[1:] == 0, (0, 1), value=True)
    return tokens[:, where], following.masked_fill(last, -100)[:, where], place[where]


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


def seen(mine, theirs, size, lengths):
    """Which queries of one chunk see which keys of another."""
    ends = list(itertools.accumulate(lengths))
    rows, columns = (range(size * number, size * (number + 1)) for number in (mine, theirs))
    return torch.tensor([[j <= i and bisect(ends, i) == bisect(ends, j) for j in columns] for i in rows])


def meetings(order, me, owner, size, lengths):
    for a, mine in enumerate(order[me]):
        for b, theirs in enumerate(order[owner]):
            mask = seen(mine, theirs, size, lengths)
            if mask.any():
                yield slice(a * size, (a + 1) * size), slice(b * size, (b + 1) * size), mask


def masked_scores(q, k, mask):
    return (q @ k.transpose(-1, -2) * (1 / math.sqrt(q.size(-1)))).where(mask, torch.tensor(-torch.inf))


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, order, lengths, group):
        n, me, size = group.size(), group.rank(), q.size(2) // len(order[0])
        times = q.size(1) // k.size(1)
        top = torch.full((*q.shape[:-1], 1), -1e30)  # finite: a row may see nothing for a while
        total, weighted = torch.zeros_like(top), torch.zeros(q.shape)
        keys, values = k, v
        for step in range(n):
            more = step + 1 < n
            coming = [pass_on(x, group) for x in (keys, values)] if more else []
            for rows, columns, mask in meetings(order, me, (me - step) % n, size, lengths):
                ks, vs = (x[:, :, columns].float().repeat_interleave(times, 1) for x in (keys, values))
                s = masked_scores(q[:, :, rows].float(), ks, mask)
                old = top[:, :, rows]
                new = torch.maximum(old, s.max(-1, keepdim=True).values)
                shrink, p = torch.exp(old - new), torch.exp(s - new)
                total[:, :, rows] = total[:, :, rows] * shrink + p.sum(-1, keepdim=True)
                weighted[:, :, rows] = weighted[:, :, rows] * shrink + p @ vs
                top[:, :, rows] = new
            if more:
                keys, values = (finish() for finish in coming)
        out = weighted / total
        ctx.how = order, lengths, group
        ctx.save_for_backward(q, k, v, out, top + total.log())
        return out.bfloat16()

    @staticmethod
    def backward(ctx, dout):
        order, lengths, group = ctx.how
        q, k, v, out, lse = ctx.saved_tensors
        n, me, size = group.size(), group.rank(), q.size(2) // len(order[0])
        times = q.size(1) // k.size(1)
        dout = dout.float()
        row = (dout * out).sum(-1, keepdim=True)
        dq, dk, dv = torch.zeros(q.shape), torch.zeros(k.shape), torch.zeros(v.shape)
        keys, values = k, v
        for step in range(n):
            more = step + 1 < n
            coming = [pass_on(x, group) for x in (keys, values)] if more else []
            for rows, columns, mask in meetings(order, me, (me - step) % n, size, lengths):
                ks, vs = (x[:, :, columns].float().repeat_interleave(times, 1) for x in (keys, values))
                queries, g = q[:, :, rows].float(), dout[:, :, rows]
                p = torch.exp(masked_scores(queries, ks, mask) - lse[:, :, rows])
                ds = p * (g @ vs.transpose(-1, -2) - row[:, :, rows]) / math.sqrt(q.size(-1))
                dq[:, :, rows] += ds @ ks
                dk[:, :, columns] += (ds.transpose(-1, -2) @ queries).unflatten(1, (-1, times)).sum(2)
                dv[:, :, columns] += (p.transpose(-1, -2) @ g).unflatten(1, (-1, times)).sum(2)
            going = [pass_on(x, group) for x in (dk, dv)]
            dk, dv = (finish() for finish in going)
            if more:
                keys, values = (finish() for finish in coming)
        return dq, dk, dv, None, None, None  # autograd rounds them


def ring_attention(q, k, v, order, lengths, group):
    return Ring.apply(q, k, v, order, lengths, group)


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
