# each rank as a small simulation

import collections

import torch
import torch.distributed as dist


def planned(rank, ranks, kinds, count, room):
    # a queue for each kind of action; go forward while there is room, else backward
    queues = {kind: collections.deque(range(count)) for kind in kinds}
    held = 0
    while any(queues.values()):
        if queues["F"] and held < room:
            held += 1
            yield "F", queues["F"].popleft()
        else:
            held -= 1
            yield "B", queues["B"].popleft()


def zero_bubble(rank, ranks, m):
    actions, waiting = [], collections.deque()
    for kind, i in planned(rank, ranks, "FB", m, ranks - rank):
        actions.append(("F", i) if kind == "F" else ("I", i))
        if kind == "B":
            waiting.append(i)
        if len(waiting) > rank:
            actions.append(("W", waiting.popleft()))
    actions.extend(("W", i) for i in waiting)
    return actions


def finish_step(parameters, table, ends, limit):
    if table is not None:
        both = [torch.empty_like(table.grad) for _ in range(dist.get_world_size(ends))]
        dist.all_gather(both, table.grad, group=ends)
        table.grad = both[0] + both[1]
    mine = [p.grad for p in parameters if p is not table or dist.get_rank() > 0]
    norms = torch.zeros(dist.get_world_size(), dtype=torch.float64)
    norms[dist.get_rank()] = sum(g.double().pow(2).sum() for g in mine)
    dist.all_reduce(norms)
    norm = norms.sum().sqrt()
    if norm > limit:
        for p in parameters:
            p.grad = p.grad * (limit / (norm + 1e-6)).to(p.grad.dtype)
    return norm
