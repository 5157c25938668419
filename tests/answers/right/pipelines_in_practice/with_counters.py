# with counters

import torch
import torch.distributed as dist


def zero_bubble(rank, ranks, m):
    actions, forward, inputs, weights = [], 0, 0, 0
    while weights < m:
        if forward < m and forward - inputs < ranks - rank:
            actions.append(("F", forward))
            forward += 1
        elif inputs < m:
            actions.append(("I", inputs))
            inputs += 1
        if inputs - weights > rank or inputs == m:
            actions.append(("W", weights))
            weights += 1
    return actions


def finish_step(parameters, table, ends, limit):
    squares = 0.0
    for p in parameters:
        if p is table:
            dist.all_reduce(p.grad, group=ends)
        if p is not table or dist.get_group_rank(ends, dist.get_rank()) == 1:
            squares += p.grad.double().square().sum().item()
    total = torch.tensor(squares, dtype=torch.float64)
    dist.all_reduce(total)
    norm = total.sqrt().item()
    for p in parameters:
        p.grad *= min(1.0, limit / (norm + 1e-6))
    return norm
