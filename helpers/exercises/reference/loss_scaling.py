"""The reference answers of solutions/03b_loss_scaling.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
from helpers import COLORS, MemoryMeter, Prediction, SmallGPT, category_table, check, device_name, digits, english, explore_loss_scale, hint, pick_device, show, show_table, sign_of_life, sixteen_bit_dtype
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

device = pick_device()
FP32, BF16, FP16 = (torch.float32, torch.bfloat16, torch.float16)
half = sixteen_bit_dtype(device)
HALF = 'BF16' if half == BF16 else 'FP16'


class LossScaler:
    """Finds a loss scale that does not overflow, while training."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.current_scale = init_scale
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.good_steps = 0
        self.overflowed = None  # None: unscale_ has not run since the last update

    def get_scale(self):
        return self.current_scale

    def scale(self, loss):
        return loss * self.current_scale

    def unscale_(self, optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        for gradient in gradients:
            gradient.div_(self.current_scale)
        self.overflowed = not all(torch.isfinite(gradient).all() for gradient in gradients)

    def step(self, optimizer):
        if self.overflowed is None:
            self.unscale_(optimizer)
        if not self.overflowed:
            optimizer.step()
        return not self.overflowed

    def update(self):
        if self.overflowed:
            self.current_scale *= self.backoff_factor
            self.good_steps = 0
        else:
            self.good_steps += 1
            if self.good_steps == self.growth_interval:
                self.current_scale *= self.growth_factor
                self.good_steps = 0
        self.overflowed = None
