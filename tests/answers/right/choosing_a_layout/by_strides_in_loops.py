# by strides, in loops

import math

from helpers.exercises.choosing_a_layout.ring import ring_bandwidth


def groups(sizes, dimension):
    names = list(sizes)
    stride = 1
    for name in names[names.index(dimension) + 1 :]:
        stride *= sizes[name]
    total = 1
    for size in sizes.values():
        total *= size
    firsts = [r for r in range(total) if r // stride % sizes[dimension] == 0]
    return [[first + i * stride for i in range(sizes[dimension])] for first in firsts]


def sent(sizes, stage, model, m):
    p, d, t = sizes["pipeline"], sizes["data"], sizes["tensor"]
    nbytes = {"tensor": 0.0, "pipeline": 0.0, "data": 0.0}
    for _ in range(m):
        for _ in range(model.blocks // p):
            nbytes["tensor"] += model.all_reduces * 2 * (model.message - model.message / t)
        if stage != 0:
            nbytes["pipeline"] += model.message
        if stage != p - 1:
            nbytes["pipeline"] += model.message
    gradients = model.weights * (model.blocks // p) / t
    nbytes["data"] = 2 * (gradients - gradients / d)
    return nbytes


def memory(layout):
    a = layout.arch
    total = 16 * a.count() / layout.tensor / layout.pipeline / layout.shard
    split = layout.micro_batch_size * layout.seq / layout.tensor
    flying = layout.pipeline if layout.micro_batches > layout.pipeline else layout.micro_batches
    layers = a.layers / layout.pipeline
    if layout.recompute == "full":
        total += split * a.hidden * (2 * layers * flying + 34)
    else:
        total += 34 * split * a.hidden * layers * flying
    if layout.pipeline == 1:
        total += 4 * split * a.vocab
    return total


def seconds(layout, cluster):
    a = layout.arch
    turn = a.flops_per_token(layout.seq) * layout.micro_batch_size * layout.seq
    turn /= layout.tensor * layout.pipeline * cluster.gpu.flops16 / 2
    messages = 4
    if layout.recompute == "full":
        turn, messages = turn * 4 / 3, 6
    mine = a.count() / layout.tensor / layout.pipeline
    gathers = (2 + 2 + 4) * (mine - mine / layout.shard)
    turn = max(turn, gathers / ring_bandwidth(cluster, layout.shard, stride=layout.tensor))
    activation = 2 * layout.seq * layout.micro_batch_size * a.hidden
    wait = messages * a.layers / layout.pipeline * 2 * (activation - activation / layout.tensor)
    turn += wait / ring_bandwidth(cluster, layout.tensor)
    return turn * (layout.micro_batches + layout.pipeline - 1)


def best(layouts, cluster):
    chosen, least = None, math.inf
    for layout in layouts:
        if memory(layout) <= cluster.gpu.room and seconds(layout, cluster) < least:
            chosen, least = layout, seconds(layout, cluster)
    return chosen
