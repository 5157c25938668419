"""The reference answers of solutions/03_mixed_precision.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
from helpers import CATEGORIES, Claims, MemoryMeter, Prediction, SmallCNN, SmallGPT, autocast_rule, cast_path, category_bars, category_table, check, compare, device_name, digits, english, fp32_computed_as, fp32_precision, has_tf32, hint, parallel_map, pick_device, show, show_table, sign_of_life, sixteen_bit_dtype
import torch
import torch.nn.functional as F
from torch import nn

device = pick_device()
FP32, BF16, FP16 = (torch.float32, torch.bfloat16, torch.float16)
half = sixteen_bit_dtype(device)
HALF = 'BF16' if half == BF16 else 'FP16'
claims = Claims()


def sgd_with_master(weight, master, gradient, lr):
    master -= lr * gradient.float()
    weight.copy_(master)


LOW_PRECISION = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Autocast(torch.overrides.TorchFunctionMode):
    """Casts the inputs of functions in LOW_PRECISION to `dtype`, and those of LOSSES to FP32."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in LOW_PRECISION:
            dtype = self.dtype
        elif func in LOSSES:
            dtype = torch.float32
        else:
            return func(*args, **kwargs)

        def cast(value):
            floating = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to(dtype) if floating else value  # for autograd an operation like any other

        return func(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})
