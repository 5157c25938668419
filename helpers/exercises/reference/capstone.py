"""The reference answers of solutions/21_capstone.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import functools
import math
import statistics
from dataclasses import replace
from helpers import CATEGORIES, Claims, KiB, LadderRun, LadderTask, MemoryMeter, Prediction, Rung, Signum, SmolLM2, check, device_name, hint, human_bytes, in_turns, lab_report, ladder_figure, parallel_map, peak_table, pick_device, planned, run_open_rung, seven_rungs, show, show_table
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu
import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import ttest_rel
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()


def accumulate(model, x, y, micro):
    for xs, ys in zip(x.split(micro), y.split(micro), strict=True):
        (F.cross_entropy(model(xs), ys, reduction="sum") / len(x)).backward()


def checkpoint_blocks(model):
    for block in model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


@torch.no_grad()
def signum_step(means, lr):
    for weight, mean in means.items():
        weight.sub_(lr * mean.sign())


def fold(means):
    def into_mean(weight):
        means[weight].add_(0.1 * weight.grad)
        weight.grad = None

    for mean in means.values():
        mean.mul_(0.9)
    return [weight.register_post_accumulate_grad_hook(into_mean) for weight in means]


def lean_update(model, means, x, y, lr):
    def take(p):
        means[p].add_(p.grad, alpha=0.1)
        p.grad = None

    hooks = [p.register_post_accumulate_grad_hook(take) for p in means]
    with torch.no_grad():
        for p, mean in means.items():
            mean.mul_(0.9).add_(p, alpha=0.1 * 0.01)
    count = (y != -100).sum()
    for xs, ys in zip(x.split(8), y.split(8), strict=True):
        (F.cross_entropy(model(xs), ys, reduction="sum") / count).backward()
    for hook in hooks:
        hook.remove()
    with torch.no_grad():
        for p, mean in means.items():
            p.add_(mean.sign(), alpha=-lr)


def prepare(model):
    model.to(torch.bfloat16)
    for block in model.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
    optimizer = Signum(model.parameters(), lr=0.0)

    def take(p):  # part by part, so that no FP32 copy is as large as a weight
        mean = optimizer.state[p]["mean"].view(-1)
        if p not in optimizer.taken:
            mean.mul_(0.9)
            optimizer.taken.add(p)
        for part, g in zip(mean.split(1024), p.grad.reshape(-1).split(1024), strict=True):
            optimizer.add(part, g.float().mul_(0.1))
        p.grad = None

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(take)
    return optimizer


def update(model, state, x, y, progress):
    where = next(model.parameters()).device
    for group in state.param_groups:
        group["lr"] = 4e-3 * min(1, 0.2 + 4 * progress) * (1 + math.cos(math.pi * progress)) / 2
    for rows in np.split(np.arange(len(x)), len(x) // 8):
        logits = model(torch.from_numpy(x[rows]).to(where, torch.bfloat16)).float()
        (F.cross_entropy(logits, torch.from_numpy(y[rows]).to(where), reduction="sum") / len(x)).backward()
    state.step()
