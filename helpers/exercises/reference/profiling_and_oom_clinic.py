"""The reference answers of solutions/06_profiling_and_oom_clinic.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import dataclasses
import itertools
import math
import os
import pickle
import tempfile
from pathlib import Path
from helpers import COLOURS, CachingAllocator, Claims, MemoryMeter, OutOfMemory, Prediction, SmallGPT, check, compare, device_name, explore, explore_timelines, hint, human_bytes, peak_table, pick_device, segments_figure, show, sign_of_life, stage_table
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.cuda._memory_viz import trace_plot
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
MiB = 2 ** 20


def replay(lifetimes, allocator):
    orders = [(life.start, 0, i) for i, life in enumerate(lifetimes)]
    orders += [(life.end, 1, i) for i, life in enumerate(lifetimes) if life.end is not None]
    blocks, log = {}, []
    for when, ends, i in sorted(orders):
        if ends:
            allocator.release(blocks.pop(i))
        else:
            blocks[i] = allocator.allocate(lifetimes[i].nbytes)
        log.append((when, allocator.allocated, allocator.reserved))
    return log


def still_there(trace, since):
    def place(frames):
        for frame in frames:
            if frame["filename"].endswith(".py") and "/torch/" not in frame["filename"]:
                return f"{frame['filename']}:{frame['line']}"
        return frames[0]["name"]

    alive = {}  # address -> the event that allocated the block there
    for event in trace:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
        elif event["action"] == "free_completed":
            alive.pop(event["addr"], None)
    left = {}
    for event in alive.values():
        if event["time_us"] >= since:
            where = place(event["frames"])
            left[where] = left.get(where, 0) + event["size"]
    return left


def train_and_log(model, optimizer, batches):
    history = []
    for ids in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        history.append(loss.detach())  # the number, not the graph behind it
        del loss
    return history


def head_loss(head, hidden, targets):
    def chunk_loss(rows, labels):
        return F.cross_entropy(head(rows).float(), labels, reduction="sum")

    total = 0
    for rows, labels in zip(hidden.split(128), targets.split(128), strict=True):
        total = total + checkpoint(chunk_loss, rows, labels, use_reentrant=False)
    return total / len(targets)


def evaluate(model, batches):
    total = 0
    with torch.no_grad():
        for ids in batches:
            total += F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    return total / len(batches)


def make_optimizer(parameters):
    return torch.optim.Adam(parameters, fused=True)  # one kernel; the for-loop would do as well


def log_means(model, means):
    def hook(name):
        def remember(module, inputs, output):
            means[name] = output.detach().mean()  # one number, without a graph, and still on the device

        return remember

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(hook(name))


def train(model, optimizer, batches):
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()  # sets .grad to None, so the memory is free during the forward pass
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        del loss
    return losses
