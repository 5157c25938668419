"""The reference answers of solutions/15_context_parallel.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

from dataclasses import replace
from helpers import Claims, Collectives, MemoryMeter, Prediction, RankError, check, device_name, hint, human_bytes, pick_device, ranks_device, run_ranks, saved_tensor_bytes, show, show_table
from helpers.core.progress_line import progress_line
from helpers.exercises.context_parallel.attend import attend, attend_backward
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import plan_layout
import torch
import torch.distributed as dist
import torch.nn.functional as F

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)
claims = Claims(device=where)


def merge(one, other):
    (out_1, lse_1), (out_2, lse_2) = one, other
    lse = torch.logaddexp(lse_1, lse_2)
    base = torch.where(lse.isinf(), 0.0, lse)  # where neither has seen anything: exp(-inf - 0) is 0
    share_1, share_2 = (lse_1 - base).exp()[..., None], (lse_2 - base).exp()[..., None]
    return share_1 * out_1 + share_2 * out_2, lse


def shift(*tensors):
    rank, n = dist.get_rank(), dist.get_world_size()
    leaving = [tensor.contiguous() for tensor in tensors]
    arriving = [torch.empty_like(tensor) for tensor in leaving]
    messages = [dist.P2POp(dist.isend, tensor, (rank + 1) % n) for tensor in leaving]
    messages += [dist.P2POp(dist.irecv, tensor, (rank - 1) % n) for tensor in arriving]
    requests = dist.batch_isend_irecv(messages)

    def finish():
        for request in requests:
            request.wait()
        leaving.clear()  # the buffers had to stay alive until now

    return arriving, finish


def ring_forward(q, k, v, order):
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = q.chunk(len(order[rank]), dim=2)
    found = [(torch.zeros_like(row), torch.full_like(row[..., 0], float("-inf"))) for row in rows]
    visiting = k, v
    for step in range(n):
        if step < n - 1:
            arriving, finish = shift(*visiting)  # travels while this block is computed
        held = order[(rank - step) % n]
        for column, *block in zip(held, *(t.chunk(len(held), dim=2) for t in visiting), strict=True):
            for i, row in enumerate(order[rank]):
                if column <= row:
                    found[i] = merge(found[i], attend(rows[i], *block, causal=column == row))
        if step < n - 1:
            finish()
            visiting = arriving
    return torch.cat([out for out, _ in found], dim=2), torch.cat([lse for _, lse in found], dim=2)


def ring_backward(gradient, inputs, results, order):
    (q, k, v), rank, n = inputs, dist.get_rank(), dist.get_world_size()
    dq, visiting, coming, land = torch.zeros_like(q), [k, v], None, None
    mine = list(zip(*(t.chunk(len(order[rank]), dim=2) for t in (gradient, q, *results, dq)), strict=True))
    for step in range(n):
        if step < n - 1:
            arriving, finish = shift(*visiting)  # keys and values travel while this block is computed
        held, sums = order[(rank - step) % n], [torch.zeros_like(k), torch.zeros_like(v)]
        columns = list(zip(*(t.chunk(len(held), dim=2) for t in (*visiting, *sums)), strict=True))
        for row, (g, q_chunk, out, lse, dq_chunk) in zip(order[rank], mine, strict=True):
            for column, (k_chunk, v_chunk, *theirs) in zip(held, columns, strict=True):
                if column <= row:
                    parts = attend_backward(g, (q_chunk, k_chunk, v_chunk), (out, lse), causal=column == row)
                    for total, part in zip((dq_chunk, *theirs), parts, strict=True):
                        total += part  # a view: it lands in the whole tensor
        if land:
            land()  # the sums of the earlier ranks, which traveled during this block
            for total, earlier in zip(sums, coming, strict=True):
                total += earlier
        coming, land = shift(*sums)  # travels during the next block; from the last one, home
        if step < n - 1:
            finish()
            visiting = arriving
    land()
    return dq, *coming
