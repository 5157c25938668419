# trees and an exponent

import math

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map


def sgd_with_master(weight, master, gradient, lr):
    with torch.no_grad():
        torch.sub(master, gradient.float(), alpha=lr, out=master)
        weight.copy_(master.bfloat16())


LOW_PRECISION = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Autocast(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        for functions, dtype in ((LOW_PRECISION, self.dtype), (LOSSES, torch.float32)):
            if func in functions:
                args, kwargs = tree_map(
                    lambda x: x.type(dtype) if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x,
                    (args, kwargs),
                )
        return func(*args, **(kwargs or {}))


class LossScaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.log = math.log2(init_scale)
        self.up, self.down, self.every = math.log2(growth_factor), math.log2(backoff_factor), growth_interval
        self.run, self.found = 0, None

    def get_scale(self):
        return 2.0**self.log

    def scale(self, loss):
        return torch.ldexp(loss, torch.tensor(self.log))

    def unscale_(self, optimizer):
        self.found = False
        for group in optimizer.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                p.grad.mul_(2.0**-self.log)
                self.found |= bool((p.grad - p.grad).ne(0).any())  # inf - inf and nan - nan are NaN

    def step(self, optimizer):
        self.unscale_(optimizer) if self.found is None else None
        return False if self.found else (optimizer.step(), True)[1]

    def update(self):
        self.run = 0 if self.found else self.run + 1
        self.log += self.down if self.found else self.up if self.run == self.every else 0.0
        self.run %= self.every
        self.found = None
