"""The reference answers of solutions/04_gradient_accumulation.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import math
from helpers import COLORS, ByteNets, Claims, MemoryMeter, Prediction, SmallCNN, SmallGPT, accumulation_timeline, benchmark, category_table, check, device_name, digits, english, explore, hint, human_bytes, pick_device, show, show_table, sign_of_life
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
MiB = 2 ** 20


def accumulate(model, x, y, micro_batch):
    total = 0.0
    for xs, ys in zip(x.split(micro_batch), y.split(micro_batch), strict=True):
        loss = F.cross_entropy(model(xs), ys) * (len(xs) / len(x))
        loss.backward()
        total = total + loss.detach()
    return total


def accumulate_tokens(model, ids, targets, micro_batch):
    counted = (targets != -100).sum()
    mean = 0.0
    for xs, ys in zip(ids.split(micro_batch), targets.split(micro_batch), strict=True):
        logits = model(xs).flatten(0, 1)  # (n x T, vocabulary)
        part = F.cross_entropy(logits, ys.flatten(), reduction="sum") / counted
        part.backward()
        mean = mean + part.detach()
    return mean


def accumulate_replica(replica, x, y, micro_batch):
    pieces = list(zip(x.split(micro_batch), y.split(micro_batch), strict=True))
    so_far = 0.0
    for i, (xs, ys) in enumerate(pieces):
        last = i == len(pieces) - 1
        with contextlib.nullcontext() if last else replica.no_sync():
            loss = F.cross_entropy(replica(xs), ys) * (len(xs) / len(x))
            loss.backward()
        so_far += loss.detach()
    return so_far


def largest_micro_batch(peak_bytes, budget, most):
    half, whole = peak_bytes(most // 2), peak_bytes(most)
    each = (whole - half) // (most - most // 2)
    fixed = whole - each * most
    rows = max(1, min(most, (budget - fixed) // each))
    return rows if peak_bytes(rows) <= budget else 0  # on the flat part, fewer rows would not help either
