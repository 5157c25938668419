# with NumPy, sorted


from helpers.exercises.choosing_a_layout.ring import ring_bandwidth

import numpy as np


def groups(sizes, dimension):
    grid = np.arange(np.prod(list(sizes.values()))).reshape(tuple(sizes.values()))
    axis = [*sizes].index(dimension)
    return [tuple(row) for row in np.moveaxis(grid, axis, -1).reshape(-1, grid.shape[axis])]


def sent(sizes, stage, model, m):
    share = {name: (size - 1) / size for name, size in sizes.items()}
    blocks = model.blocks / sizes["pipeline"]
    first, last = stage == 0, stage + 1 == sizes["pipeline"]
    return dict(
        tensor=np.float64(2 * share["tensor"] * m * blocks * model.all_reduces * model.message),
        pipeline=m * model.message * (2 - first - last),
        data=2 * share["data"] * blocks * model.weights / sizes["tensor"],
    )


def memory(layout):
    width = layout.arch.hidden * layout.seq * layout.micro_batch_size
    each = {"none": 34, "full": 2}[layout.recompute]
    kept = each * width * layout.arch.layers / layout.pipeline * min(layout.micro_batches, layout.pipeline)
    kept += {"none": 0, "full": 34}[layout.recompute] * width
    kept += (layout.pipeline == 1) * 4 * layout.arch.vocab * layout.seq * layout.micro_batch_size
    return (16 * layout.arch.count() / layout.pipeline / layout.shard + kept) / layout.tensor


def seconds(layout, cluster):
    full = layout.recompute == "full"
    flops = layout.arch.flops_per_token(layout.seq) * layout.tokens * (4 if full else 3) / 3
    compute = 2 * flops / layout.ranks / cluster.gpu.flops16
    mine = layout.arch.count() / (layout.tensor * layout.pipeline)
    data = (
        layout.micro_batches * 8 * mine * (1 - 1 / layout.shard) / ring_bandwidth(cluster, layout.shard, layout.tensor)
    )
    numbers = layout.micro_batch_size * layout.seq * layout.arch.hidden * layout.arch.layers / layout.pipeline
    tensor = 2 * 2 * numbers * (6 if full else 4) * layout.micro_batches * (1 - 1 / layout.tensor)
    wait = tensor / ring_bandwidth(cluster, layout.tensor, 1)
    busy = np.maximum(compute, data) + wait
    return busy + busy / layout.micro_batches * (layout.pipeline - 1)


def best(layouts, cluster):
    for layout in sorted(layouts, key=lambda layout: seconds(layout, cluster)):
        if not memory(layout) > cluster.gpu.room:
            return layout
