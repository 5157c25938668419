"""The reference answers of solutions/03_mixed_precision.py, which `check` compares with.

Written by `python -m helpers build`; change the source, not this file.
"""

import math
import warnings
from helpers import COLOURS, TENANTS, Claims, MemoryMeter, Prediction, SmallCNN, SmallGPT, autocast_rule, cast_path, check, compare, device_name, digits, english, explore_loss_scale, fp32_computed_as, fp32_precision, has_tf32, hint, pick_device, show, sign_of_life, sixteen_bit_dtype, tenant_bars, tenant_table
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


PRODUCTS = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Autocast(torch.overrides.TorchFunctionMode):
    """Casts what goes into products to `dtype`, and what goes into losses to FP32."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in PRODUCTS:
            dtype = self.dtype
        elif func in LOSSES:
            dtype = torch.float32
        else:
            return func(*args, **kwargs)

        def cast(value):
            floating = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to(dtype) if floating else value  # for autograd an operation like any other

        return func(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})


class Widened(torch.overrides.TorchFunctionMode):
    """Notes the names of functions that get 16-bit floating-point tensors and return FP32."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        narrow = any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors)
        if narrow and isinstance(result, torch.Tensor) and result.dtype == torch.float32:
            self.found.append(func.__name__)
        return result


def safe(function, device_type):
    forward = torch.amp.custom_fwd(function.forward, device_type=device_type, cast_inputs=torch.float32)
    backward = torch.amp.custom_bwd(function.backward, device_type=device_type)

    class Safe(torch.autograd.Function):
        pass

    Safe.forward, Safe.backward = staticmethod(forward), staticmethod(backward)
    return Safe
