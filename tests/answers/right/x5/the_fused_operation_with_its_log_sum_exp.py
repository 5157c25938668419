# the fused operation with its log-sum-exp

import torch
import torch.distributed as dist
from torch import nn


def fused(*args):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args)


def fused_backward(*args):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*args)


def shard(tokens, rank, ranks):
    pieces = 2 * ranks
    if (tokens.shape[-1] - 1) % pieces:
        raise ValueError("the sequence does not divide into chunks of one size")
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    places = torch.arange(inputs.shape[1])
    held = []
    for everything in (inputs, targets, places):
        cut = everything.chunk(pieces, -1)
        held.append(torch.cat((cut[rank], cut[-1 - rank]), -1))
    return tuple(held)


class pass_on:
    def __init__(self, x, group):
        self.ranks = dist.get_process_group_ranks(group)
        self.buffer = x
        self.requests = []
        if len(self.ranks) > 1:
            at = self.ranks.index(dist.get_rank())
            self.buffer = torch.zeros_like(x, memory_format=torch.contiguous_format)
            self.sent = x.clone(memory_format=torch.contiguous_format)
            before, behind = self.ranks[at - 1], self.ranks[(at + 1) % len(self.ranks)]
            self.requests = [
                dist.irecv(self.buffer, src=before, group=group),
                dist.isend(self.sent, dst=behind, group=group),
            ]

    def __call__(self):
        while self.requests:
            self.requests.pop().wait()
        return self.buffer


def pair(mine, theirs, half):
    if mine == theirs:
        return slice(0, 2 * half), slice(0, 2 * half)
    return (slice(half, 2 * half), slice(0, 2 * half)) if mine < theirs else (slice(0, 2 * half), slice(0, half))


def wide(x, heads):
    return x[:, :, None].expand(-1, -1, heads // x.shape[1], -1, -1).reshape(x.shape[0], heads, *x.shape[2:])


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, group):
        N, r, H = dist.get_world_size(group), dist.get_rank(group), q.shape[1]
        half = q.shape[2] // 2
        q, held = q.contiguous(), torch.stack((k, v))
        out = lse = None
        for step in range(N):
            s = (r - step) % N
            arriving = pass_on(held, group) if step < N - 1 else None
            rows, columns = pair(r, s, half)
            part, part_lse = fused(
                q[:, :, rows], wide(held[0][:, :, columns], H), wide(held[1][:, :, columns], H), 0.0, s == r
            )
            if out is None:
                out, lse = part, part_lse
            else:
                share = torch.sigmoid(part_lse - lse[:, :, rows]).unsqueeze(-1)
                out[:, :, rows] = torch.lerp(out[:, :, rows], part, share)
                lse[:, :, rows] = torch.logaddexp(lse[:, :, rows], part_lse)
            if arriving:
                held = arriving()
        ctx.group, ctx.half = group, half
        ctx.save_for_backward(q, k, v, out.contiguous(), lse)
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        group, half, dout = ctx.group, ctx.half, dout.contiguous()
        N, r, H, h = dist.get_world_size(group), dist.get_rank(group), q.shape[1], k.shape[1]
        held, dq = torch.stack((k, v)), torch.zeros_like(q)
        dheld = torch.zeros_like(held)
        for step in range(N):
            s = (r - step) % N
            arriving = pass_on(held, group) if step < N - 1 else None
            rows, columns = pair(r, s, half)
            a, b, c = fused_backward(
                dout[:, :, rows],
                q[:, :, rows],
                wide(held[0][:, :, columns], H),
                wide(held[1][:, :, columns], H),
                out[:, :, rows],
                lse[:, :, rows],
                0.0,
                s == r,
            )
            dq[:, :, rows] += a
            dheld[0][:, :, columns] += b.unflatten(1, (h, -1)).sum(2)
            dheld[1][:, :, columns] += c.unflatten(1, (h, -1)).sum(2)
            dheld = pass_on(dheld, group)()
            held = arriving() if arriving else held
        return dq, *dheld.unbind(), None


def ring_attention(q, k, v, group):
    return Fused.apply(q, k, v, group)


def train_step(model, inputs, targets, positions, group):
    for p in model.parameters():
        p.grad = None
    criterion = nn.CrossEntropyLoss(reduction="none")
    counts = torch.tensor([float((targets >= 0).sum())])
    dist.all_reduce(counts, op=dist.ReduceOp.SUM, group=group)
    losses = criterion(model(inputs, positions).flatten(0, 1), targets.flatten())
    mine = losses.sum() / counts.item()
    mine.backward()
    learning = [p for p in model.parameters() if p.requires_grad]
    flat = torch.cat([p.grad.flatten() for p in learning] + [mine.detach()[None]])
    dist.all_reduce(flat, group=group)
    *grads, loss = flat.split([p.numel() for p in learning] + [1])
    for p, g in zip(learning, grads):
        p.grad = g.view_as(p).clone()
    return loss.item()
