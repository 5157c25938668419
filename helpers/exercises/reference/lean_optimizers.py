"""The reference answers of solutions/09_lean_optimizers.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import gc
import importlib.util
import math
import weakref
from helpers import CATEGORIES, COLORS, Claims, GiB, MatricesAndRest, MemoryMeter, MiB, Prediction, Recipe, SmallGPT, category_bars, check, compare, device_name, english, explore, hint, human_bytes, pick_device, planned, show, show_table, sign_of_life, state_bytes, static_bars
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward

device = pick_device()
claims = Claims()


def encode(x, book, block):
    flat = x.flatten()
    blocks = F.pad(flat, (0, -len(flat) % block)).view(-1, block)
    scales = blocks.abs().amax(1)
    scaled = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    borders = (book[1:] + book[:-1]) / 2  # halfway between neighbors
    codes = torch.bucketize(scaled, borders, out_int32=True)
    return codes.flatten()[: len(flat)].to(torch.uint8), scales


def decode(codes, scales, book, block, shape):
    scale_of_each = scales.repeat_interleave(block)[: len(codes)]
    return (book[codes.int()] * scale_of_each).view(shape)


def adam_(p, m, v, t, group):
    """Take step `t` of Adam with the settings of `group`: update `p` and its moments `m` and `v`, in place."""
    beta1, beta2 = group["betas"]
    m.lerp_(p.grad, 1 - beta1)
    v.lerp_(p.grad.square(), 1 - beta2)
    root = (v / (1 - beta2**t)).sqrt_().add_(group["eps"])
    p.addcdiv_(m, root, value=-group["lr"] / (1 - beta1**t))


class Adam8(torch.optim.Optimizer):
    """Adam that stores its moments in 8 bits."""

    def __init__(self, params, books, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.books = books

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                self.state[p]["step"] = self.state[p].get("step", 0) + 1
                self.update(p, self.state[p], group)

    def update(self, p, state, group):
        """Step number `state["step"]` of `p`; its moments are in `state` from one step to the next."""
        moments = []
        for name, book in zip("mv", self.books, strict=True):
            moment = state.get(name)
            if moment is None:
                moment = torch.zeros_like(p)
            elif p.numel() >= 4096:
                moment = decode(*moment, book, 256, p.shape)
            moments.append(moment)
        adam_(p, *moments, state["step"], group)
        for name, book, moment in zip("mv", self.books, moments, strict=True):
            state[name] = encode(moment, book, 256) if p.numel() >= 4096 else moment


def step_in_backward(parameters, make_optimizer):
    optimizers, handles = [], []
    trained = dict.fromkeys(p for p in parameters if p.requires_grad)  # each one once
    for parameter in trained:
        optimizer = make_optimizer([parameter])

        def step(parameter, optimizer=optimizer):  # bound now: the loop goes on
            optimizer.step()
            optimizer.zero_grad()

        optimizers.append(optimizer)
        handles.append(parameter.register_post_accumulate_grad_hook(step))
    return optimizers, handles
