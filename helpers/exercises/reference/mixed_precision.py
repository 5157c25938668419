"""The reference answers of solutions/03_mixed_precision.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
import warnings
from helpers import COLOURS, TENANTS, Claims, MemoryMeter, Prediction, SmallCNN, SmallGPT, autocast_rule, check, compare, device_name, digits, english, explore_loss_scale, fp32_computed_as, fp32_precision, has_tf32, pick_device, show, sixteen_bit_dtype, tenant_bars, tenant_table
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
FP32, BF16, FP16 = (torch.float32, torch.bfloat16, torch.float16)
half = sixteen_bit_dtype(device)
HALF = 'BF16' if half == BF16 else 'FP16'
claims = Claims()


def sgd_with_master(weight, master, gradient, lr):
    master -= lr * gradient.float()
    weight.copy_(master)


def underflow_share(gradient, scale):
    nonzero = gradient[gradient != 0]
    if nonzero.numel() == 0:
        return 0.0
    return ((nonzero * scale).half() == 0).float().mean().item()
