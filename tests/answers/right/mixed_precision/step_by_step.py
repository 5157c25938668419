# step by step

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


def sgd_with_master(weight, master, gradient, lr):
    master.add_(gradient.to(torch.float32), alpha=-lr)
    weight.data[:] = master.to(torch.bfloat16)


PRODUCTS = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Autocast(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args, kwargs = list(args), dict(kwargs or {})
        target = self.dtype if func in PRODUCTS else torch.float32 if func in LOSSES else None
        if target is not None:
            for place, value in enumerate(args):
                if torch.is_tensor(value) and torch.is_floating_point(value):
                    args[place] = value.to(dtype=target)
            for name, value in kwargs.items():
                if torch.is_tensor(value) and torch.is_floating_point(value):
                    kwargs[name] = value.to(dtype=target)
        return func(*args, **kwargs)


class Widened(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not torch.is_tensor(out) or out.dtype is not torch.float32:
            return out
        for value in list(args) + list((kwargs or {}).values()):
            if torch.is_tensor(value) and value.is_floating_point() and value.element_size() == 2:
                self.found.append(func.__name__)
                break
        return out


def safe(function, device_type):
    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            if torch.is_autocast_enabled(device_type):
                inputs = [t.float() if torch.is_tensor(t) and t.is_floating_point() else t for t in inputs]
            with torch.autocast(device_type, enabled=False):
                return function.forward(ctx, *inputs)

        @staticmethod
        def backward(ctx, *gradients):
            with torch.autocast(device_type, enabled=False):
                return function.backward(ctx, *gradients)

    return Made
