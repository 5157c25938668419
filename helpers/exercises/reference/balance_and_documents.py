"""The reference answers of solutions/15b_balance_and_documents.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

from functools import partial
from helpers import Claims, Collectives, Prediction, check, device_name, explore, hint, human_bytes, pick_device, rank_device, ranks_device, run_ranks, show, show_table
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import find_cluster
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.recipe import RecipeError
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

device = pick_device()
RANKS = 4
where = ranks_device(RANKS)
claims = Claims(device=where)


def zigzag(ranks):
    return [[rank, 2 * ranks - 1 - rank] for rank in range(ranks)]  # a cheap one and an expensive one


def cut(tokens, order, rank):
    chunks = torch.arange(tokens.shape[1] - 1, device=tokens.device).chunk(sum(map(len, order)))
    positions = torch.cat([chunks[number] for number in order[rank]])
    return tokens[:, positions], tokens[:, positions + 1], positions


def exchange(x, split, join):
    leaving = torch.stack(x.chunk(dist.get_world_size(), dim=split))
    arrived = torch.empty_like(leaving)
    dist.all_to_all_single(arrived, leaving)
    return torch.cat(arrived.unbind(), dim=join)
