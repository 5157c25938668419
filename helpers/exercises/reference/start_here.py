"""The reference answers of solutions/00_start_here.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

from helpers import MemoryMeter, Prediction, check, compare, device_name, hint, human_bytes, pick_device, show, supports
import torch
from torch import nn

device = pick_device()


def parameter_bytes(model):
    return sum(p.numel() * p.element_size() for p in model.parameters())
