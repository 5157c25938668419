"""The reference answers of solutions/15_x5_ring_attention.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

from helpers import check, device_name, english, hint, human_bytes, pick_device, rank_device, ranks_device, run_ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

device = pick_device()
where = ranks_device(4)


def shard(tokens, rank, ranks):
    chunk, left = divmod(tokens.shape[1] - 1, 2 * ranks)
    if left:
        raise ValueError(f"{tokens.shape[1] - 1} tokens cannot be divided into {2 * ranks} chunks of equal size")
    chunks = torch.arange(2 * ranks * chunk, device=tokens.device).view(2 * ranks, chunk)
    positions = torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])
    return tokens[:, positions], tokens[:, positions + 1], positions


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

    wait.send = send  # it holds the only reference to a copy of x, which has to stay until then
    return wait


def meets(source, rank, half):
    """Return the slice of my t queries and the slice of the t keys from rank `source` that meet each other."""
    if source < rank:
        return slice(None), slice(half)  # their earlier chunk lies before both of mine, their later one behind
    if source > rank:
        return slice(half, None), slice(None)  # my later chunk lies behind both of theirs, my earlier one before
    return slice(None), slice(None)


class RingAttention(torch.autograd.Function):
    @staticmethod
    def scores(q, k, mine):  # (B, h, g, i, D) and (B, h, j, D) -> (B, h, g, i, j)
        scores = torch.einsum("bhgid,bhjd->bhgij", q, k) / q.shape[-1] ** 0.5
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill_(later, float("-inf")) if mine else scores

    @staticmethod
    def forward(ctx, q, k, v, group):
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        q = q.unflatten(1, (k.shape[1], -1))  # (B, h, g, t, D): the heads that share a key head
        block, out, lse = torch.stack([k, v]), torch.zeros_like(q), torch.full_like(q[..., 0], float("-inf"))
        for step in range(ranks):
            source = (rank - step) % ranks
            wait = pass_on(block, group) if step < ranks - 1 else None
            mine, theirs = meets(source, rank, q.shape[-2] // 2)
            scores = RingAttention.scores(q[..., mine, :], block[0][..., theirs, :], source == rank)
            new = torch.logaddexp(lse[..., mine], scores.logsumexp(-1))
            out[..., mine, :] *= (lse[..., mine] - new).exp()[..., None]
            p = (scores - new[..., None]).exp()
            out[..., mine, :] += torch.einsum("bhgij,bhjd->bhgid", p, block[1][..., theirs, :])
            lse[..., mine] = new
            block = wait() if wait else block
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, lse)
        return out.flatten(1, 2)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        rank, ranks = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        grad = grad.unflatten(1, q.shape[1:3])
        delta = (grad * out).sum(-1, keepdim=True)  # (B, h, g, t, 1)
        block, dq = torch.stack([k, v]), torch.zeros_like(q)
        d_block = torch.zeros_like(block)
        for step in range(ranks):
            source = (rank - step) % ranks
            wait = pass_on(block, ctx.group) if step < ranks - 1 else None
            mine, theirs = meets(source, rank, q.shape[-2] // 2)
            q_, g_, k_, v_ = q[..., mine, :], grad[..., mine, :], block[0][..., theirs, :], block[1][..., theirs, :]
            p = (RingAttention.scores(q_, k_, source == rank) - lse[..., mine, None]).exp()
            d_block[1][..., theirs, :] += torch.einsum("bhgij,bhgid->bhjd", p, g_)
            ds = torch.einsum("bhgid,bhjd->bhgij", g_, v_).sub_(delta[..., mine, :]).mul_(p).div_(q.shape[-1] ** 0.5)
            d_block[0][..., theirs, :] += torch.einsum("bhgij,bhgid->bhjd", ds, q_)
            dq[..., mine, :] += torch.einsum("bhgij,bhjd->bhgid", ds, k_)
            d_block = pass_on(d_block, ctx.group)()  # travels with its block; the last step brings it home
            block = wait() if wait else block
        return dq.flatten(1, 2), d_block[0], d_block[1], None


def ring_attention(q, k, v, group):
    return RingAttention.apply(q, k, v, group)


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
