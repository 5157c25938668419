"""The reference answers of solutions/09b_muon_and_in_place.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import itertools
import math
import statistics
import textwrap
from helpers import COLORS, Claims, MatricesAndRest, MemoryMeter, Prediction, SmallCNN, SmallGPT, ViT, check, device_name, digits, english, explore, hint, human_bytes, parallel_map, pick_device, show, show_table, sign_of_life, state_bytes
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
claims = Claims()


def orthogonalize(matrix, iterations):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / (matrix.norm() + 1e-7)
    tall = len(x) > x.shape[1]
    x = x.mT if tall else x
    for _ in range(iterations):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized; for matrices only."""

    def __init__(self, matrices, lr):
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                momentum = state["momentum"].lerp_(p.grad, 0.05)
                step = orthogonalize(p.grad.lerp(momentum, 0.95), 5)
                p.sub_(step, alpha=0.2 * math.sqrt(max(p.shape)) * group["lr"])


class HardtanhInPlace(torch.autograd.Function):
    """Clamps a tensor to [-1, 1] in place, and keeps only the result for the backward pass."""

    @staticmethod
    def forward(ctx, x):
        x.clamp_(-1, 1)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (y.abs() < 1)
