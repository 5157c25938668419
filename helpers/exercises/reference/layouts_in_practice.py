"""The reference answers of solutions/17b_layouts_in_practice.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
from dataclasses import replace
from helpers import Claims, GiB, Prediction, check, device_name, hint, human_bytes, layout_explorer, pick_device, show, show_table
from helpers.exercises.choosing_a_layout.built import best, seconds
from helpers.planner.catalog.archs import arch_of
from helpers.planner.catalog.clusters import CLUSTERS
from helpers.planner.config import RecipeError
from helpers.planner.exports import export
from helpers.planner.layout.layout import Layout
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.rows.line import read_line
from helpers.planner.search.found import found_of
from helpers.planner.search.names import name as name_of
from helpers.planner.search.searched import Asked, searched
import torch

device = pick_device()
claims = Claims(device=torch.device('cpu'))


def decide(question):
    engine = {"engine": "megatron", "zero": "zero1"}  # the fastest attention on H100s
    if question.seq > 2**15:  # four sequences on eight GPUs: split each, and recompute its blocks, for room
        split = {"context": 8, "context_method": "all-to-all", "micro_batches": 4, "recompute": "full"}
        return Layout(question.arch, shard=1, **split, **engine, seq=question.seq)
    split = {"context": 2, "context_method": "all-to-all"}  # there is room: recompute nothing
    return Layout(question.arch, shard=32, **split, **engine, seq=question.seq)


def bill(found, tokens, price, goodput):
    steps = math.ceil(tokens / found.layout.tokens)
    worst, best = goodput
    each = found.low / best, found.seconds / ((worst + best) / 2), found.high / worst
    days = tuple(steps * seconds / 86_400 for seconds in each)
    gpu_hours = tuple(24 * found.layout.ranks * time for time in days)
    return {"days": days, "gpu_hours": gpu_hours, "dollars": tuple(price * hours for hours in gpu_hours)}
