"""The reference answers of solutions/06b_oom_clinic.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import math
import pickle
import tempfile
from pathlib import Path
from helpers import Claims, MemoryMeter, OutOfMemory, Prediction, SmallGPT, check, compare, device_name, hint, human_bytes, peak_table, pick_device, show, show_table, stage_table
from helpers.virtual_gpu import beside_real_gpu, virtual_gpu
from helpers.virtual_gpu.written import write_snapshot
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

device = pick_device()
claims = Claims()
MiB = 2 ** 20


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
