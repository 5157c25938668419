# the limit over the norm itself

import torch
import torch.distributed as dist


def finish_step(parameters, table, ends, limit):
    if table is not None:
        dist.all_reduce(table.grad, group=ends)
    squares = torch.zeros(())
    for p in parameters:
        squares += p.grad.square().sum() * (0.5 if p is table else 1)
    dist.all_reduce(squares)
    norm = squares.sqrt()
    if norm > limit:
        for p in parameters:
            p.grad.mul_(limit / norm)
    return norm
