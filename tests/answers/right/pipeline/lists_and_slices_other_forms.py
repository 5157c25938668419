# lists and slices, other forms

from itertools import chain

import torch
import torch.distributed as dist


def gpipe(rank, ranks, m):
    order = list(range(m))[::-1]  # backward passes from the last micro-batch to the first, on all ranks
    yield from (("F", i, 0) for i in range(m))
    yield from (["B", i] for i in order)


def one_f_one_b(rank, ranks, m):
    warm = ranks - 1 - rank
    forward = [("F", i) for i in range(m)]
    backward = [("B", i) for i in range(m)]
    if m <= warm:
        return tuple(forward + backward)
    steady = chain.from_iterable(zip(forward[warm:], backward))
    return (*forward[:warm], *steady, *backward[m - warm :])


def interleaved(rank, ranks, m, v):
    groups = [range(start, start + ranks) for start in range(0, m, ranks)]
    forward = [["F", i, c] for group in groups for c in range(v) for i in group]
    backward = [["B", i, c] for group in groups for c in reversed(range(v)) for i in group]
    warm = min((v - 1) * ranks + (ranks - rank - 1), len(forward))
    steady = [a for pair in zip(forward[warm:], backward) for a in pair]
    done = len(forward) - warm
    return forward[:warm] + steady + backward[done:]


def run_forward(stage, i):
    x, last = stage.x[i].clone(), stage.number == stage.count - 1
    if stage.number != 0:
        dist.recv(x, stage.number - 1)
    x.requires_grad = True
    y = stage.module(x)
    if last:
        y = ((y - stage.y[i]) ** 2).mean() / len(stage.y)
    stage.kept[i] = [x, y]
    value = y.detach()
    if last:
        return value
    stage.sending.append((dist.isend(value, stage.number + 1), value))


def run_backward(stage, i):
    x, y = stage.kept.pop(i)
    dy = torch.ones_like(y.detach())
    if stage.number != stage.count - 1:
        dist.recv(dy, stage.number + 1)
    parameters = list(stage.module.parameters())
    dx, *gradients = torch.autograd.grad(y, [x, *parameters], dy)
    for p, gradient in zip(parameters, gradients):
        p.grad = gradient if p.grad is None else p.grad + gradient
    if stage.number != 0:
        stage.sending.append((dist.isend(dx, stage.number - 1), dx))
