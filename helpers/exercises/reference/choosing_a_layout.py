"""The reference answers of solutions/17_choosing_a_layout.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
from helpers import Claims, Collectives, Engine, GiB, Prediction, check, device_name, explore, hint, human_bytes, in_a_row, pick_device, run_ranks, show, show_table, toy_batch, toy_stages
from helpers.exercises.choosing_a_layout.ring import ring_bandwidth
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import CLUSTERS
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.search.found import found_of
from helpers.planner.search.names import name as name_of
from helpers.planner.search.searched import Asked, kept_answers
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

device = pick_device()
claims = Claims(device=torch.device('cpu'))


def groups(sizes, dimension):
    ranks = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    along = ranks.movedim(list(sizes).index(dimension), -1)
    return along.reshape(-1, sizes[dimension]).tolist()


def sent(sizes, stage, model, m):
    def ring(n, nbytes):
        return 2 * (n - 1) / n * nbytes

    blocks = model.blocks // sizes["pipeline"]
    neighbors = (stage > 0) + (stage < sizes["pipeline"] - 1)
    return {
        "tensor": ring(sizes["tensor"], model.message) * model.all_reduces * blocks * m,
        "pipeline": neighbors * m * model.message,
        "data": ring(sizes["data"], model.weights * blocks / sizes["tensor"]),
    }


def memory(layout):
    arch, tokens = layout.arch, layout.micro_batch_size * layout.seq / layout.tensor
    state = 16 * arch.count() / (layout.tensor * layout.pipeline * layout.shard)
    blocks = arch.layers / layout.pipeline * min(layout.pipeline, layout.micro_batches)  # times those in flight
    width = tokens * arch.hidden
    activations = 34 * width * blocks if layout.recompute == "none" else 2 * width * blocks + 34 * width
    logits = 4 * tokens * arch.vocab if layout.pipeline == 1 else 0
    return state + activations + logits


def seconds(layout, cluster):
    arch, m, again = layout.arch, layout.micro_batches, layout.recompute == "full"
    flops = arch.flops_per_token(layout.seq) * layout.tokens / layout.ranks * (4 / 3 if again else 1)
    compute = flops / (0.5 * cluster.gpu.flops16)
    parameters = arch.count() / (layout.tensor * layout.pipeline)
    leaves = 8 * parameters * (layout.shard - 1) / layout.shard * m
    data = leaves / ring_bandwidth(cluster, layout.shard, layout.tensor)
    message = 2 * layout.micro_batch_size * layout.seq * arch.hidden
    reduces = (6 if again else 4) * arch.layers / layout.pipeline * m
    around = 2 * (layout.tensor - 1) / layout.tensor * message
    tensor = reduces * around / ring_bandwidth(cluster, layout.tensor)
    return (max(compute, data) + tensor) * (1 + (layout.pipeline - 1) / m)


def best(layouts, cluster):
    fitting = [layout for layout in layouts if memory(layout) <= cluster.gpu.room]
    return min(fitting, key=lambda layout: seconds(layout, cluster), default=None)
