# formulas written out

from helpers.exercises.mixture_of_experts.built import permute, unpermute

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed import _functional_collectives as funcol


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.arguments = (send, receive, group)
        return funcol.all_to_all_single(rows.contiguous(), receive, send, group) + 0

    @staticmethod
    def backward(ctx, gradient):
        send, receive, group = ctx.arguments
        return funcol.all_to_all_single(gradient.contiguous(), send, receive, group) + 0, None, None, None


def expert_parallel(x, chosen, weights, up, down, group):
    n, own = group.size(), len(up)
    rows, counts, source = permute(x, chosen, n * own)
    sizes = counts.int()
    mine = torch.empty_like(sizes)
    dist.all_to_all_single(mine, sizes, group=group)
    send = [int(s) for s in sizes.view(n, own).sum(1)]
    receive = [int(s) for s in mine.view(n, own).sum(1)]
    arrived = Exchange.apply(rows, send, receive, group)
    expert = torch.cat([torch.full((int(c),), i % own) for i, c in enumerate(mine)])
    out = 0 * arrived + 0 * (up.sum() + down.sum())
    for e in range(own):
        at = torch.nonzero(expert == e)[:, 0]
        out = out.index_add(0, at, F.gelu(arrived[at] @ up[e].mT) @ down[e].mT)
    return unpermute(Exchange.apply(out, receive, send, group), source, weights)


def average_gradients(shared, experts, mesh):
    n = dist.get_world_size()
    for p in shared:
        p.grad = funcol.all_reduce(p.grad / n, "sum", dist.group.WORLD) + 0
    for p in experts:
        if mesh.get_group("replica").size() > 1:
            p.grad = funcol.all_reduce(p.grad, "sum", mesh.get_group("replica")) + 0
        p.grad = p.grad / n
