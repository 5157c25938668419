# places of each expert, and counts gathered

from helpers.exercises.mixture_of_experts.built import grouped, permute, unpermute

import torch
import torch.distributed as dist


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return moved(rows, send, receive, group)

    @staticmethod
    def backward(ctx, g):
        return moved(g, ctx.receive, ctx.send, ctx.group), None, None, None


def moved(t, send, receive, group):
    parts = [part.contiguous() for part in t.split(send)]
    got = [t.new_empty(n, t.shape[1]) for n in receive]
    flat = torch.cat(got)
    dist.all_to_all_single(flat, torch.cat(parts), receive, send, group=group)
    return flat


def expert_parallel(x, chosen, weights, up, down, group):
    n, own = dist.get_world_size(group), len(up)
    rows, counts, source = permute(x, chosen, n * own)
    everybody = torch.empty(n * n * own, dtype=counts.dtype)
    dist.all_gather_into_tensor(everybody, counts, group=group)
    me = dist.get_rank(group)
    table = everybody.view(n, n, own)  # from, to, expert
    send, receive = table[me].sum(1).tolist(), table[:, me].sum(1).tolist()
    arrived = Exchange.apply(rows, send, receive, group)
    blocks = arrived.split(table[:, me].flatten().tolist())  # by rank, then by expert
    sorted_rows = torch.cat([blocks[r * own + e] for e in range(own) for r in range(n)])
    y = grouped(sorted_rows, table[:, me].sum(0), up, down)
    pieces = y.split(table[:, me].T.flatten().tolist())  # by expert, then by rank
    y = torch.cat([pieces[e * n + r] for r in range(n) for e in range(own)])
    return unpermute(Exchange.apply(y, receive, send, group), source, weights)


def average_gradients(shared, experts, mesh):
    for parameters, group in ((shared, dist.group.WORLD), (experts, mesh["replica"].get_group())):
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size()
        for p, g in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad = g.view_as(p)
