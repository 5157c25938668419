# made again by autograd, counts as objects

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def shard(tokens, rank, ranks):
    B, T = tokens.shape[0], tokens.shape[1] - 1
    assert_size = T // (2 * ranks)
    if assert_size * 2 * ranks != T:
        raise ValueError(T)
    index = torch.arange(T).reshape(2, ranks, -1)
    index[1] = index[1].flip(0)  # the second row of chunks, from behind
    mine = index[:, rank].reshape(-1)
    return tokens.gather(1, mine.expand(B, -1)), tokens.gather(1, mine.expand(B, -1) + 1), mine


def pass_on(x, group):
    r, n = dist.get_rank(group), dist.get_world_size(group)
    if n < 2:
        return lambda: x
    flat = x.reshape(-1)
    came = torch.empty_like(flat)
    sent = dist.isend(flat, group=group, group_dst=(r + 1) % n, tag=5)
    received = dist.irecv(came, group=group, group_src=(r - 1) % n, tag=5)

    def wait():
        received.wait()
        sent.wait()
        return came.view(x.shape)

    return wait


def attend(q, k, v, own):
    """Output and log-sum-exp of a block."""
    g = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(g, dim=1) for x in (k, v))
    scores = (q * q.shape[-1] ** -0.5) @ k.mT
    if own:
        scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1)
    lse = torch.logsumexp(scores, -1, keepdim=True)
    return (scores - lse).exp() @ v, lse


def cut(q, k, v, r, s):
    half = q.shape[2] // 2
    if s < r:
        k, v = k.narrow(2, 0, half), v.narrow(2, 0, half)
    if s > r:
        q = q.narrow(2, half, half)
    return q, k, v


class RoundAndRound(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        r, n = dist.get_rank(group), dist.get_world_size(group)
        out, lse = attend(q, k, v, own=True)
        block = torch.cat([k, v], -1)
        for s in [(r - i) % n for i in range(1, n)]:
            block = pass_on(block, group)()
            rows, ks, vs = cut(q, *block.chunk(2, -1), r, s)
            o, l = attend(rows, ks, vs, own=False)
            view_o, view_l = out[:, :, -rows.shape[2] :], lse[:, :, -rows.shape[2] :]
            both = torch.logaddexp(view_l, l)
            view_o.copy_(view_o * (view_l - both).exp() + o * (l - both).exp())
            view_l.copy_(both)
        ctx.group = group
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        group = ctx.group
        r, n = dist.get_rank(group), dist.get_world_size(group)
        dq, block = torch.zeros_like(q), torch.cat([k, v], -1)
        dblock = torch.zeros(block.shape)
        for i in range(n):
            s = (r - i) % n
            if i:
                block, dblock = pass_on(block, group)(), pass_on(dblock, group)()
            rows, ks, vs = (x.detach().clone().requires_grad_() for x in cut(q, *block.chunk(2, -1), r, s))
            t = rows.shape[2]
            with torch.enable_grad():
                o, l = attend(rows, ks, vs, own=s == r)
                # the whole output is sum of o * exp(l - lse), and lse moves with l
                weight = (l - lse[:, :, -t:]).exp().detach()
                g = grad[:, :, -t:]
                target = (o * weight * g).sum() + (
                    l * (weight * ((o.detach() - out[:, :, -t:]) * g).sum(-1, keepdim=True))
                ).sum()
            a, b, c = torch.autograd.grad(target, [rows, ks, vs])
            dq[:, :, -t:] += a
            dblock[:, :, : ks.shape[2]] += torch.cat([b, c], -1)
        dblock = pass_on(dblock, group)()
        return dq, *dblock.chunk(2, -1), None


def ring_attention(q, k, v, group):
    return RoundAndRound.apply(q, k, v, group)


def train_step(model, inputs, targets, positions, group):
    model.zero_grad(set_to_none=False)
    n = dist.get_world_size(group)
    keep = targets != -100
    numbers = [None] * n
    dist.all_gather_object(numbers, keep.sum().item(), group=group)
    logits = model(inputs, positions)
    losses = cross_entropy(logits[keep], targets[keep], reduction="sum") if keep.any() else 0.0 * logits.sum()
    (losses / sum(numbers)).backward()
    for p in model.parameters():
        if p.requires_grad:
            dist.all_reduce(p.grad, group=group)
    sums = [None] * n
    dist.all_gather_object(sums, losses.item(), group=group)
    return sum(sums) / sum(numbers)
