"""The reference answers of solutions/10b_fused_kernels.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import importlib.util
import math
import os
import tempfile
from helpers import COLORS, Claims, MemoryMeter, Prediction, Recipe, benchmark, check, compare, device_name, explore, hint, human_bytes, pick_device, plan_deep, show, sign_of_life, traffic, why_no_compiler, with_vocabulary
from helpers.planner.catalog import find_model
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device, claims, missing = (pick_device(), Claims(), why_no_compiler())
HAS_TRITON = importlib.util.find_spec('triton') is not None


def online_softmax(state, scores, values):
    largest = scores.amax(-1)
    if state is not None:
        largest = torch.maximum(largest, state[0])
    base = torch.where(largest.isinf(), 0.0, largest)  # where nothing was seen: exp(-inf - 0) is 0
    weights = (scores - base[..., None]).exp()
    total, weighted = weights.sum(-1), weights @ values
    if state is not None:
        rescale = (state[0] - base).exp()  # the old sums were relative to the old maximum
        total = total + rescale * state[1]
        weighted = weighted + rescale[..., None] * state[2]
    return largest, total, weighted


def tiled_attention(q, k, v, tile):
    length, scale = q.shape[-2], q.shape[-1] ** -0.5
    out = torch.empty_like(q)
    for top in range(0, length, tile):
        rows, state = q[..., top : top + tile, :] * scale, None
        for left in range(0, top + 1, tile):  # tiles to the right of the diagonal are masked
            scores = rows @ k[..., left : left + tile, :].mT
            if left == top:
                later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
                scores = scores.masked_fill(later, float("-inf"))
            state = online_softmax(state, scores, v[..., left : left + tile, :])
        _, total, weighted = state
        out[..., top : top + tile, :] = weighted / total[..., None]
    return out


if HAS_TRITON:
    import triton.language as tl


def merge_tile(largest, total, weighted, scores, values):
    new = tl.maximum(largest, tl.max(scores, 1))
    weights, shrink = tl.exp(scores - new[:, None]), tl.exp(largest - new)
    total = shrink * total + tl.sum(weights, 1)
    weighted = shrink[:, None] * weighted + tl.dot(weights, values, input_precision="ieee")
    return new, total, weighted


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
        counts = (labels != -100).sum().clamp(min=1)  # stays a tensor, so nothing waits for the GPU
        ctx.dtype = hidden.dtype
        ctx.save_for_backward(*sums, counts)
        return total / counts

    @staticmethod
    def backward(ctx, upstream):
        *sums, counts = ctx.saved_tensors
        return *(None if s is None else (s * (upstream / counts)).to(ctx.dtype) for s in sums), None, None, None


def chunked_cross_entropy(hidden, weight, labels, chunk):
    return ChunkedLoss.apply(hidden, weight, labels, chunk, torch.is_grad_enabled())
