"""The reference answers of solutions/03_mixed_precision.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
import warnings
from helpers import COLOURS, TENANTS, Claims, MemoryMeter, Prediction, SmallCNN, SmallGPT, check, compare, device_name, digits, english, explore_loss_scale, pick_device, show, supports, tenant_bars, tenant_table
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
FP32, BF16, FP16 = (torch.float32, torch.bfloat16, torch.float16)
claims = Claims()


def sgd_with_master(weight, master, gradient, lr):
    master -= lr * gradient.float()
    weight.copy_(master)


def underflow_share(gradient, scale):
    nonzero = gradient[gradient != 0]
    if nonzero.numel() == 0:
        return 0.0
    return ((nonzero * scale).half() == 0).float().mean().item()
