# step by step

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


def sgd_with_master(weight, master, gradient, lr):
    master.add_(gradient.to(torch.float32), alpha=-lr)
    weight.data[:] = master.to(torch.bfloat16)


LOW_PRECISION = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Autocast(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        args, kwargs = list(args), dict(kwargs or {})
        target = self.dtype if func in LOW_PRECISION else torch.float32 if func in LOSSES else None
        if target is not None:
            for place, value in enumerate(args):
                if torch.is_tensor(value) and torch.is_floating_point(value):
                    args[place] = value.to(dtype=target)
            for name, value in kwargs.items():
                if torch.is_tensor(value) and torch.is_floating_point(value):
                    kwargs[name] = value.to(dtype=target)
        return func(*args, **kwargs)
