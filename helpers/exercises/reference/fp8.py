"""The reference answers of solutions/19_fp8.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

from collections import defaultdict
from helpers import COLORS, E2M1, Claims, LinearLog, Prediction, ShortRun, check, device_name, explore_scale, float8_products_picture, floor_power_of_two, hint, pick_device, quantize_blockwise, show, show_table, to_e2m1
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

claims = Claims()
device = pick_device() if pick_device().type == 'cuda' else torch.device('cpu')
BF16, E4M3, E5M2 = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


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
