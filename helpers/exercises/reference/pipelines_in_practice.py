"""The reference answers of solutions/14b_pipelines_in_practice.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import dataclasses
from helpers import Claims, Collectives, Costs, Engine, LinearInTwoParts, MemoryMeter, Pipeline, Prediction, activations_held, check, clock_pipelines, count_flops, device_name, distance_from_one_process, explore, hint, human_bytes, in_a_row, in_a_vee, pick_device, rank_device, run_ranks, show, show_table, torch_order, toy_batch, toy_stages, weights_later
from helpers.exercises.pipeline.built import one_f_one_b
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, ScheduleZBVZeroBubble, schedules
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

device = pick_device()
claims = Claims(device=torch.device('cpu'))


def zero_bubble(rank, ranks, m):
    schedule = []
    for kind, i in one_f_one_b(rank, ranks, m):
        if kind == "F":
            schedule.append(("F", i))
        else:
            schedule.append(("I", i))
            if i >= rank:  # rank r lets r weight gradients wait
                schedule.append(("W", i - rank))
    return schedule + [("W", i) for i in range(m - rank, m)]


def finish_step(parameters, table, ends, limit):
    if table is not None:
        dist.all_reduce(table.grad, group=ends)
    counted = [p.grad for p in parameters if p is not table or dist.get_rank() == 0]  # the table on the first rank only
    norm = get_total_norm(counted).square()
    dist.all_reduce(norm)
    norm = norm.sqrt()
    clip_grads_with_norm_(parameters, limit, norm)
    return norm
