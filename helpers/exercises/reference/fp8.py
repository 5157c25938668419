"""The reference answers of solutions/19_fp8.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import contextlib
import importlib.util
import logging
import math
from collections import defaultdict
from helpers import COLOURS, E2M1, Claims, LinearLog, MemoryMeter, Prediction, Recipe, SmallGPT, check, compare, device_name, english, explore, floor_power_of_two, human_bytes, numbers_beyond_cache, pick_device, planned, profile_step, quantize_blockwise, range_ruler, show, supports, tenant_table, to_e2m1
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

claims = Claims()
device = pick_device() if pick_device().type == 'cuda' else torch.device('cpu')
BF16, E4M3, E5M2 = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
HAS_FP8_UNITS = device.type == 'cuda' and torch.cuda.get_device_capability() >= (8, 9)


def mx_quantise(x):
    n = x.shape[-1]
    padded = F.pad(x.float(), (0, -n % 32))  # zeros change no amax
    blocks = padded.reshape(*x.shape[:-1], -1, 32)
    amax = blocks.abs().amax(-1)  # NaN and infinity come through
    fraction, exponent = torch.frexp(amax)  # amax = fraction x 2^exponent, 1/2 <= fraction < 1; 448 = 7/8 x 2^9
    exponent = exponent - 9 + (fraction > 7 / 8).int()
    scale = torch.ldexp(torch.ones_like(amax), exponent.clamp(min=-127))
    scale = torch.where(amax == 0, 1.0, scale)
    scale = torch.where(amax.isfinite(), scale, torch.nan)
    values = (blocks / scale[..., None]).reshape(padded.shape)[..., :n]
    return values.to(torch.float8_e4m3fn), scale.to(torch.float8_e8m0fnu)
