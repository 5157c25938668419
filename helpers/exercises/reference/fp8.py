"""The reference answers of solutions/19_fp8.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import importlib.util
import math
from collections import defaultdict
from dataclasses import replace
from functools import partial
from helpers import COLORS, E2M1, Claims, LinearLog, Prediction, Recipe, ShortRun, category_table, check, compare, device_name, explore_scale, float8_products_picture, floor_power_of_two, hint, human_bytes, numbers_beyond_cache, pick_device, planned, quantize_blockwise, show, show_table, supports, to_e2m1
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

claims = Claims()
device = pick_device() if pick_device().type == 'cuda' else torch.device('cpu')
BF16, E4M3, E5M2 = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
HAS_FP8_UNITS = device.type == 'cuda' and torch.cuda.get_device_capability() >= (8, 9)


def quantize(x, dtype, scale=1.0):
    """The FP8 values of `x`, such that scale * values is close to x."""
    largest = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-largest, largest).to(dtype)


def current_scale(x, dtype):
    """One scale for the tensor, from its own amax."""
    amax = x.detach().abs().amax().float()
    return torch.where(amax > 0, amax / torch.finfo(dtype).max, 1.0)


def delayed_scale(history, x, dtype):
    """The scale from the amaxes of earlier steps; this step's amax goes into the history."""
    known = history.max()
    scale = torch.where(known > 0, known / torch.finfo(dtype).max, current_scale(x, dtype))
    amax = x.detach().abs().amax().float()
    moved = torch.cat((amax[None], history[:-1]))
    history.copy_(torch.where(amax.isfinite(), moved, history))
    return scale


def gradient_of_x(g8, scale_g, w8, scale_w, product):
    """The gradient of x (M, K), summed over outputs."""
    return product(g8, scale_g, w8, scale_w)


def gradient_of_w(g8, scale_g, x8, scale_x, product):
    """The gradient of w (N, K), summed over tokens."""
    return product(g8.t(), scale_g, x8, scale_x)


class Float8Product(torch.autograd.Function):
    """x (M, K) times the transpose of weight (N, K), in FP8."""

    @staticmethod
    def forward(ctx, x, weight, scale_of, product, keep_x, keep_w):
        scale_x, scale_w = scale_of(x, E4M3), scale_of(weight, E4M3)
        x8, w8 = quantize(x, E4M3, scale_x), quantize(weight, E4M3, scale_w)
        ctx.scale_of, ctx.product = scale_of, product
        ctx.save_for_backward(x8 if keep_x else x, w8 if keep_w else weight, scale_x, scale_w)
        return product(x8, scale_x, w8.t(), scale_w)

    @staticmethod
    def backward(ctx, g):
        x, w, scale_x, scale_w = ctx.saved_tensors
        scale_g = ctx.scale_of(g, E5M2)
        g8 = quantize(g, E5M2, scale_g)
        of_x = of_w = None
        if ctx.needs_input_grad[0]:
            w8 = w if w.dtype == E4M3 else quantize(w, E4M3, scale_w)
            of_x = gradient_of_x(g8, scale_g, w8, scale_w, ctx.product)
        if ctx.needs_input_grad[1]:
            x8 = x if x.dtype == E4M3 else quantize(x, E4M3, scale_x)
            of_w = gradient_of_w(g8, scale_g, x8, scale_x, ctx.product)
        return of_x, of_w, None, None, None, None


def mx_quantize(x):
    n = x.shape[-1]
    padded = F.pad(x.float(), (0, -n % 32))  # zeros do not change an amax
    blocks = padded.reshape(*x.shape[:-1], -1, 32)
    amax = blocks.abs().amax(-1)  # NaN and infinity propagate
    fraction, exponent = torch.frexp(amax)  # amax = fraction x 2^exponent, 1/2 <= fraction < 1; 448 = 7/8 x 2^9
    exponent = exponent - 9 + (fraction > 7 / 8).int()
    scale = torch.ldexp(torch.ones_like(amax), exponent.clamp(min=-127))
    scale = torch.where(amax == 0, 1.0, scale)
    scale = torch.where(amax.isfinite(), scale, torch.nan)
    values = (blocks / scale[..., None]).reshape(padded.shape)[..., :n]
    return values.to(torch.float8_e4m3fn), scale.to(torch.float8_e8m0fnu)
