"""The reference answers of solutions/14_pipeline.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import dataclasses
import inspect
from helpers import Claims, Pipeline, Prediction, Stuck, activations_held, check, clock_pipelines, device_name, distance_from_one_process, hint, human_bytes, in_a_row, pick_device, run_ranks, show, show_table, toy_batch, toy_stages
from helpers.pipelines.stage import Stage
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

device = pick_device()
claims = Claims(device=torch.device('cpu'))


def run_forward(stage, i):
    x = stage.x[i]
    if stage.number > 0:
        x = torch.empty_like(x)
        dist.recv(x, stage.number - 1)
        x.requires_grad_()  # a new leaf: its gradient is the message back
    y = stage.module(x)
    if stage.number == stage.count - 1:
        y = F.mse_loss(y, stage.y[i]) / len(stage.y)
    else:
        message = y.detach()
        stage.sending.append((dist.isend(message, stage.number + 1), message))
    stage.kept[i] = x, y
    return y.detach() if stage.number == stage.count - 1 else None


def run_backward(stage, i):
    x, y = stage.kept.pop(i)
    gradient = None
    if stage.number < stage.count - 1:
        gradient = torch.empty_like(y)
        dist.recv(gradient, stage.number + 1)
    y.backward(gradient)
    if stage.number > 0:
        stage.sending.append((dist.isend(x.grad, stage.number - 1), x.grad))


def gpipe(rank, ranks, m):
    return [("F", i) for i in range(m)] + [("B", i) for i in range(m)]


def one_f_one_b(rank, ranks, m):
    warm_up = min(ranks - rank - 1, m)
    schedule = [("F", i) for i in range(warm_up)]
    for i in range(m - warm_up):
        schedule += [("F", warm_up + i), ("B", i)]
    return schedule + [("B", i) for i in range(m - warm_up, m)]


def interleaved(rank, ranks, m, v):
    forward = [("F", first + i, chunk) for first in range(0, m, ranks) for chunk in range(v) for i in range(ranks)]
    backward = [("B", i, v - 1 - chunk) for _, i, chunk in forward]
    warm_up = v * ranks - rank - 1
    schedule = forward[:warm_up]
    for pair in zip(forward[warm_up:], backward, strict=False):
        schedule += pair
    return schedule + backward[v * m - warm_up :]
