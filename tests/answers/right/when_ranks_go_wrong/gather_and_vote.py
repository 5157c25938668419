# gather and vote

import torch
import torch.distributed as dist


def average_gradients(model, rows):
    n = dist.get_world_size()
    counts = [torch.zeros(1) for _ in range(n)]
    dist.all_gather(counts, torch.tensor([float(rows)]))
    total = sum(c.item() for c in counts)
    for p in model.parameters():
        if p.requires_grad:
            mine = (p.grad if p.grad is not None else torch.zeros_like(p.data)) * (rows / total)
            dist.all_reduce(mine, op=dist.ReduceOp.SUM)
            p.grad = mine


def out_of_step(calls):
    n = 0
    while any(n < len(own) for own in calls.values()):
        groups = {}
        for rank, own in calls.items():
            key = (own[n][0], tuple(own[n][1])) if n < len(own) else ()
            groups.setdefault(key, set()).add(rank)
        if len(groups) > 1:
            usual = [ranks for ranks in groups.values() if 2 * len(ranks) > len(calls)]
            return n + 1, sorted(set(calls) - usual[0] if usual else calls)
        n += 1
