"""The reference answers of solutions/19b_training_in_fp8.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import importlib.util
import math
from dataclasses import replace
from functools import partial
from helpers import COLORS, Claims, LinearLog, Prediction, Recipe, ShortRun, category_table, check, compare, device_name, hint, human_bytes, numbers_beyond_cache, pick_device, planned, show, show_table, supports
from helpers.exercises.fp8.built import quantize
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

claims = Claims()
device = pick_device() if pick_device().type == 'cuda' else torch.device('cpu')
BF16, E4M3, E5M2 = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
HAS_FP8_UNITS = device.type == 'cuda' and torch.cuda.get_device_capability() >= (8, 9)


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
