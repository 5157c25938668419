# lists and slices, other forms

import torch
import torch.distributed as dist


def zero_bubble(rank, ranks, m):
    def after(i):
        return [("W", i - rank)] if i >= rank else []

    warm = ranks - rank - 1
    start = [("F", i) for i in range(warm)]
    middle = [a for i in range(m - warm) for a in [("F", warm + i), ("I", i), *after(i)]]
    end = [a for i in range(m - warm, m) for a in [("I", i), *after(i)]]
    return start + middle + end + [("W", i) for i in range(m - rank, m)]


def finish_step(parameters, table, ends, limit):
    halves = 1.0
    if table is not None:
        dist.all_reduce(table.grad, group=ends)
        halves = 0.5  # the table is on two ranks, and each counts half of its square
    squares = sum((halves if p is table else 1.0) * p.grad.square().sum() for p in parameters)
    dist.all_reduce(squares)
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, squares.sqrt())
    return squares.sqrt()
