"""The reference answers of solutions/10_compilation_and_fusion.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import importlib.util
import io
import json
import math
import os
import tempfile
import time
import warnings
from helpers import COLOURS, Claims, MemoryMeter, Prediction, Recipe, benchmark, check, compare, device_name, explore, human_bytes, numbers_beyond_cache, pick_device, plan_deep, planned, saved_tensor_bytes, show, text_table, traffic, why_no_compiler, written_kernels
from helpers.planner.catalog import find_model
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
claims = Claims()
MiB = 2 ** 20
missing = why_no_compiler()


class ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk, grad_enabled):
        wanted = [grad_enabled and needed for needed in ctx.needs_input_grad[:2]]
        inputs = zip((hidden, weight), wanted, strict=True)
        sums = [torch.zeros_like(t, dtype=torch.float32) if wants else None for t, wants in inputs]
        total = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), chunk):
            rows, truth = hidden[start : start + chunk], labels[start : start + chunk]
            logits = (rows @ weight.t()).float()
            total += F.cross_entropy(logits, truth, reduction="sum")  # leaves out -100
            if any(wanted):
                gradient = logits.softmax(-1)
                gradient[torch.arange(len(truth), device=truth.device), truth.clamp(min=0)] -= 1
                gradient[truth == -100] = 0
                gradient = gradient.to(rows.dtype)
                if wanted[0]:
                    sums[0][start : start + chunk] = gradient @ weight
                if wanted[1]:
                    sums[1] += gradient.t() @ rows
            logits = gradient = None  # before the next chunk's are made
        counts = (labels != -100).sum().clamp(min=1)  # stays a tensor: the GPU need not be waited for
        ctx.dtype = hidden.dtype
        ctx.save_for_backward(*sums, counts)
        return total / counts

    @staticmethod
    def backward(ctx, upstream):
        *sums, counts = ctx.saved_tensors
        grads = [None if s is None else (s * (upstream / counts)).to(ctx.dtype) for s in sums]
        return *grads, None, None, None


def chunked_cross_entropy(hidden, weight, labels, chunk):
    return ChunkedLoss.apply(hidden, weight, labels, chunk, torch.is_grad_enabled())
