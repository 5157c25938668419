"""The reference answers of solutions/15b_x5_ring_attention.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

from helpers import check, device_name, english, hint, human_bytes, pick_device, rank_device, ranks_device, run_ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

device = pick_device()
where = ranks_device(4)


def shard(tokens, lengths, order, rank):
    """Return what a rank trains on: the inputs, targets and positions of its chunks."""
    positions = torch.cat([torch.arange(length, device=tokens.device) for length in lengths])
    targets = tokens.roll(-1, 1)
    targets[:, torch.tensor(lengths).cumsum(0) - 1] = -100
    whole, chunks = (tokens, targets, positions), sum(map(len, order))
    return tuple(x.unflatten(-1, (chunks, -1))[..., order[rank], :].flatten(-2) for x in whole)


def deal(lengths, ranks, chunk):
    each, left = divmod(sum(lengths), ranks * chunk)
    if left:
        raise ValueError(f"{sum(lengths)} tokens are not equally many chunks of {chunk} for each of {ranks} ranks")
    sees = torch.cat([torch.arange(1, length + 1) for length in lengths])
    work = sees.view(-1, chunk).sum(1).tolist()
    order, load = [[] for _ in range(ranks)], [0] * ranks
    for number in sorted(range(len(work)), key=lambda number: -work[number]):  # equal ones stay in their order
        rank = min((rank for rank in range(ranks) if len(order[rank]) < each), key=lambda rank: load[rank])
        order[rank].append(number)
        load[rank] += work[number]
    return [sorted(chunks) for chunks in order]


def pass_on(x, group):
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        return lambda: x
    coming = torch.empty_like(x, memory_format=torch.contiguous_format)
    send = dist.P2POp(dist.isend, x.contiguous(), group=group, group_peer=(rank + 1) % ranks)
    receive = dist.P2POp(dist.irecv, coming, group=group, group_peer=(rank - 1) % ranks)
    under_way = dist.batch_isend_irecv([send, receive])

    def wait():
        for work in under_way:
            work.wait()
        return coming

    wait.send = send  # what is sent may be a copy of x: it stays as long as `wait`, whatever the backend keeps
    return wait


def meets(row, column, chunk, lengths):
    """Return a mask (chunk, chunk): which queries of chunk `row` see which keys of chunk `column`; None if none do."""
    ends = torch.tensor(lengths).cumsum(0)
    rows, columns = (torch.arange(chunk * number, chunk * (number + 1)) for number in (row, column))
    together = torch.bucketize(rows, ends, right=True)[:, None] == torch.bucketize(columns, ends, right=True)
    sees = together & (rows[:, None] >= columns)
    return sees if sees.any() else None


def pairs(rows, columns, chunk, lengths, device):
    """Yield a slice of the rank's queries, a slice of the block's keys and their mask, for chunks that meet."""
    for i, row in enumerate(rows):
        for j, column in reversed(list(enumerate(columns))):  # the own chunk first: then each query has seen a key
            sees = meets(row, column, chunk, lengths)
            if sees is not None:
                yield slice(chunk * i, chunk * (i + 1)), slice(chunk * j, chunk * (j + 1)), sees.to(device)


class RingAttention(torch.autograd.Function):
    @staticmethod
    def scores(q, k, sees):  # (B, h, g, i, D) and (B, h, j, D) -> (B, h, g, i, j)
        scores = torch.einsum("bhgid,bhjd->bhgij", q, k) / q.shape[-1] ** 0.5
        return scores.masked_fill_(~sees, float("-inf"))

    @staticmethod
    def forward(ctx, q, k, v, order, lengths, group):
        rank, ranks, chunk = dist.get_rank(group), dist.get_world_size(group), q.shape[2] // len(order[0])
        ctx.how, ctx.group = (order, lengths), group
        wide = q.float().unflatten(1, (k.shape[1], -1))  # (B, h, g, t, D): the heads that share a key head
        block, out, lse = torch.stack([k, v]), torch.zeros_like(wide), torch.full_like(wide[..., 0], float("-inf"))
        for step in range(ranks):
            source = (rank - step) % ranks
            wait = pass_on(block, group) if step < ranks - 1 else None
            for mine, theirs, sees in pairs(order[rank], order[source], chunk, lengths, q.device):
                k_, v_ = block[..., theirs, :].float()
                scores = RingAttention.scores(wide[..., mine, :], k_, sees)
                new = torch.logaddexp(lse[..., mine], scores.logsumexp(-1))
                out[..., mine, :] *= (lse[..., mine] - new).exp()[..., None]
                p = (scores - new[..., None]).exp()
                out[..., mine, :] += torch.einsum("bhgij,bhjd->bhgid", p, v_)
                lse[..., mine] = new
            block = wait() if wait else block
        ctx.save_for_backward(q, k, v, out, lse)
        return out.flatten(1, 2).to(q.dtype)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        order, lengths = ctx.how
        rank, ranks, chunk = dist.get_rank(ctx.group), dist.get_world_size(ctx.group), q.shape[2] // len(order[0])
        wide, grad = (x.float().unflatten(1, (k.shape[1], -1)) for x in (q, grad))
        delta = (grad * out).sum(-1, keepdim=True)  # (B, h, g, t, 1)
        block, dq = torch.stack([k, v]), torch.zeros_like(wide)
        arriving = None  # waits for the gradients of the block that is here now
        for step in range(ranks):
            d_block = torch.zeros_like(block, dtype=torch.float32)
            source = (rank - step) % ranks
            wait = pass_on(block, ctx.group) if step < ranks - 1 else None
            for mine, theirs, sees in pairs(order[rank], order[source], chunk, lengths, q.device):
                q_, g_, (k_, v_) = wide[..., mine, :], grad[..., mine, :], block[..., theirs, :].float()
                p = (RingAttention.scores(q_, k_, sees) - lse[..., mine, None]).exp()
                d_block[1][..., theirs, :] += torch.einsum("bhgij,bhgid->bhjd", p, g_)
                dp = torch.einsum("bhgid,bhjd->bhgij", g_, v_)
                ds = (dp - delta[..., mine, :]).mul_(p).div_(q.shape[-1] ** 0.5)
                d_block[0][..., theirs, :] += torch.einsum("bhgij,bhgid->bhjd", ds, q_)
                dq[..., mine, :] += torch.einsum("bhgij,bhjd->bhgid", ds, k_)
            d_block += arriving() if arriving else 0.0  # the sum over the ranks before, which traveled meanwhile
            arriving = pass_on(d_block, ctx.group)  # travels with its block; the last step brings it home
            block = wait() if wait else block
        d_block = arriving()
        dq, dk, dv = (x.to(q.dtype) for x in (dq.flatten(1, 2), *d_block))
        return dq, dk, dv, None, None, None


def ring_attention(q, k, v, order, lengths, group):
    return RingAttention.apply(q, k, v, order, lengths, group)


def train_step(model, inputs, targets, positions, group):
    model.zero_grad()
    count = (targets != -100).sum()
    dist.all_reduce(count, group=group)
    logits = model(inputs, positions)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / count
    loss.backward()
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
    loss = loss.detach()
    dist.all_reduce(loss, group=group)
    return loss.item()
