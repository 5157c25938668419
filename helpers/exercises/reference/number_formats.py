"""The reference answers of solutions/02_number_formats.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import copy
import math
from helpers import COLORS, FORMATS, Claims, LinearLog, Prediction, SmallGPT, check, device_name, english, explain_bits, explore_bits, hint, parallel_map, pick_device, python_source, show, show_table, sign_of_life
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


def round_to(x, fraction_bits):
    dropped = 23 - fraction_bits
    bits = x.view(torch.int32)
    last = (bits >> dropped) & 1  # the last bit that stays
    half = (1 << (dropped - 1)) - 1  # just below the middle; an odd last bit pushes the middle itself over
    return ((bits + half + last) & -(1 << dropped)).view(torch.float32)


def stochastic_round(x):
    bits = x.view(torch.int32)
    noise = torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)
    return ((bits + noise) & ~0xFFFF).view(torch.float32).bfloat16()  # the sum carries into the upper half by chance


def kahan_add(weight, lost, update):
    meant = weight.float() + lost.float() + update
    rounded = meant.bfloat16()
    return rounded, (meant - rounded.float()).bfloat16()
