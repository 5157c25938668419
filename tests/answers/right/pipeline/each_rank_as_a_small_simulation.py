# each rank as a small simulation

import collections

import torch
import torch.distributed as dist
import torch.nn.functional as F


def gpipe(rank, ranks, m):
    return sorted(((kind, i) for i in range(m) for kind in "FB"), key=lambda action: -ord(action[0]))


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


def one_f_one_b(rank, ranks, m):
    return list(planned(rank, ranks, "FB", m, ranks - rank))


def interleaved(rank, ranks, m, v):
    order = [(g * ranks + i, c) for g in range(m // ranks) for c in range(v) for i in range(ranks)]
    actions = []
    for kind, k in planned(rank, ranks, "FB", m * v, v * ranks - rank):
        i, chunk = order[k]
        actions.append((kind, i, chunk if kind == "F" else v - chunk - 1))
    return actions


def _received(like, rank):
    buffer = torch.empty(like.shape, dtype=like.dtype)
    dist.irecv(buffer, rank).wait()
    return buffer


def _post(stage, tensor, rank):
    if 0 <= rank < stage.count:
        stage.sending += [(dist.isend(tensor, rank), tensor)]


def run_forward(stage, i):
    x = _received(stage.x[i], stage.number - 1).requires_grad_() if stage.number else stage.x[i]
    with torch.enable_grad():
        y = stage.module(x)
    stage.kept[i] = x, y
    _post(stage, y.data, stage.number + 1)
    if stage.number == stage.count - 1:
        with torch.no_grad():
            return F.mse_loss(y, stage.y[i]) / len(stage.y)
    return None


def run_backward(stage, i):
    x, y = stage.kept.pop(i)
    if stage.number < stage.count - 1:
        dy = _received(y, stage.number + 1)
    else:  # the derivative of the mean of squares
        dy = 2 * (y.detach() - stage.y[i]) / (y.numel() * len(stage.y))
    torch.autograd.backward([y], [dy])
    _post(stage, x.grad, stage.number - 1)
