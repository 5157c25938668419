"""The reference answers of solutions/02_number_formats.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
from helpers import COLOURS, FORMATS, Claims, Prediction, SmallGPT, check, device_name, english, explain_bits, explore_bits, pick_device, show
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

device = pick_device()
claims = Claims()


def gap(value, exponent_bits, fraction_bits):
    lowest = 1 - (2 ** (exponent_bits - 1) - 1)  # exponent of the smallest normal number
    exponent = math.frexp(value)[1] - 1  # 2**exponent <= value < 2**(exponent + 1)
    return 2.0 ** (max(exponent, lowest) - fraction_bits)


def share_that_moves(weight, update):
    moved = (weight.float() - update).to(weight.dtype)
    return (moved != weight).float().mean().item()


def stochastic_round(x):
    bits = x.view(torch.int32)
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)
    return ((bits + noise) & ~0xFFFF).view(torch.float32).bfloat16()  # the sum carries into the upper half by chance
