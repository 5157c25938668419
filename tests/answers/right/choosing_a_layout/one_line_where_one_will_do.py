# one line where one will do

import itertools
import math

from helpers.exercises.choosing_a_layout.ring import ring_bandwidth


def groups(sizes, dimension):
    others = [range(n) if name != dimension else (0,) for name, n in sizes.items()]
    strides = [math.prod([*sizes.values()][i + 1 :]) for i in range(len(sizes))]
    step = strides[list(sizes).index(dimension)]
    starts = [sum(c * s for c, s in zip(at, strides)) for at in itertools.product(*others)]
    return [list(range(start, start + step * sizes[dimension], step)) for start in starts]


def sent(sizes, stage, model, m):
    ends = len({0, sizes["pipeline"] - 1} & {stage}) + (sizes["pipeline"] == 1)
    each = model.blocks // sizes["pipeline"]
    return {
        "data": 2 * (1 - 1 / sizes["data"]) * model.weights * each / sizes["tensor"],
        "pipeline": (2 - ends) * m * model.message,
        "tensor": 2 * (1 - 1 / sizes["tensor"]) * model.message * model.all_reduces * each * m,
    }


def memory(layout):
    a, t, p = layout.arch, layout.tensor, layout.pipeline
    numbers = a.hidden * layout.micro_batch_size * layout.seq / t
    pieces = a.layers / p * min(p, layout.micro_batches)
    kept = numbers * (34 * pieces if layout.recompute != "full" else 34 + 2 * pieces)
    return 16 * a.count() / (t * p * layout.shard) + kept + (0 if p > 1 else 4 * numbers / a.hidden * a.vocab)


def seconds(layout, cluster):
    a, t, p, d, m = layout.arch, layout.tensor, layout.pipeline, layout.shard, layout.micro_batches
    passes = 3 + (layout.recompute == "full")
    compute = a.flops_per_token(layout.seq) / 3 * passes * layout.tokens / layout.ranks / cluster.gpu.flops16 * 2
    data = (m * 8 * a.count() / (t * p)) * (d - 1) / d / ring_bandwidth(cluster, d, t)
    wait = 2 * passes * m * a.layers / p * 2 * (t - 1) / t * 2 * layout.micro_batch_size * layout.seq * a.hidden
    wait = wait - (2 * m * a.layers / p * 2 * (t - 1) / t * 2 * layout.micro_batch_size * layout.seq * a.hidden)
    return (max(compute, data) + wait / ring_bandwidth(cluster, t)) * (m + p - 1) / m


def best(layouts, cluster):
    by_time = sorted((seconds(l, cluster), i) for i, l in enumerate(layouts) if memory(l) <= cluster.gpu.room)
    return layouts[by_time[0][1]] if by_time else None
