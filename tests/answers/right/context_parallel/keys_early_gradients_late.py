# keys early, gradients late

from helpers.exercises.context_parallel.attend import attend, attend_backward

import torch
import torch.distributed as dist


def merge(one, other):
    (out, lse), (part, part_lse) = one, other
    share = torch.sigmoid(part_lse - lse).nan_to_num(0.0)[..., None]  # of the second
    return out * (1 - share) + part * share, torch.logaddexp(lse, part_lse)


def shift(*tensors):
    up, down = (dist.get_rank() + 1) % dist.get_world_size(), (dist.get_rank() - 1) % dist.get_world_size()
    shapes = [(t.shape, t.dtype) for t in tensors]
    kept = [t.reshape(-1).clone() for t in tensors]
    new = [torch.empty(t.numel(), dtype=t.dtype, device=t.device) for t in kept]
    operations = []
    for t, place in zip(kept, new):
        operations += [dist.P2POp(dist.irecv, place, down), dist.P2POp(dist.isend, t, up)]
    works = dist.batch_isend_irecv(operations)

    def finish():
        while works:
            works.pop().wait()
        return kept

    return [place.view(shape) for place, (shape, _) in zip(new, shapes)], finish


def pairs(rows, columns):
    return [(i, j, row == column) for i, row in enumerate(rows) for j, column in enumerate(columns) if row >= column]


def ring_forward(q, k, v, order):
    me, n = dist.get_rank(), dist.get_world_size()
    rows = q.split(q.shape[2] // len(order[me]), 2)
    state = [None] * len(rows)
    source = me
    while True:
        following = (source - 1) % n
        if following != me:
            (next_k, next_v), finish = shift(k, v)
        ks, vs = (t.split(t.shape[2] // len(order[source]), 2) for t in (k, v))
        for i, j, diagonal in pairs(order[me], order[source]):
            part = attend(rows[i], ks[j], vs[j], diagonal)
            state[i] = part if state[i] is None else merge(part, state[i])
        if following == me:
            break
        finish()
        k, v, source = next_k, next_v, following
    outs, lses = zip(*state)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def ring_backward(gradient, inputs, results, order):
    (q, k, v), me, n = inputs, dist.get_rank(), dist.get_world_size()
    cut_up = lambda t, held: t.split(t.shape[2] // len(held), 2)
    qs, gs, outs, lses = (cut_up(t, order[me]) for t in (q, gradient, *results))
    dqs = [torch.zeros_like(t) for t in qs]
    coming = None
    for step in range(n):
        held = order[(me - step) % n]
        if step < n - 1:
            onward, keys_here = shift(k, v)
        ks, vs = cut_up(k, held), cut_up(v, held)
        dks, dvs = [torch.zeros_like(t) for t in ks], [torch.zeros_like(t) for t in vs]
        for i, j, diagonal in pairs(order[me], held):
            dq, dk, dv = attend_backward(gs[i], (qs[i], ks[j], vs[j]), (outs[i], lses[i]), diagonal)
            dqs[i] = dqs[i] + dq
            dks[j] = dks[j] + dk
            dvs[j] = dvs[j] + dv
        dk, dv = torch.cat(dks, 2), torch.cat(dvs, 2)
        if step < n - 1:
            keys_here()
        if coming is not None:
            arrived, done = coming
            done()
            dk, dv = dk + arrived[0], dv + arrived[1]
        coming = shift(dk, dv)
        if step < n - 1:
            k, v = onward
    (dk, dv), done = coming
    done()
    return torch.cat(dqs, 2), dk, dv
