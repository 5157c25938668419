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


class LossScaler:
    READY, CLEAN, DIRTY = range(3)

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.s, self.grow, self.shrink, self.n = init_scale, growth_factor, backoff_factor, growth_interval
        self.state, self.since = self.READY, 0

    def get_scale(self):
        return self.s

    def scale(self, loss):
        return self.s * loss

    def unscale_(self, optimizer):
        flat = []
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.copy_(p.grad / self.s)
                    flat.append(p.grad.flatten())
        self.state = self.CLEAN if torch.cat(flat).abs().amax() < torch.inf else self.DIRTY

    def step(self, optimizer):
        if self.state == self.READY:
            self.unscale_(optimizer)
        stepped = self.state == self.CLEAN
        if stepped:
            optimizer.step()
        return stepped

    def update(self):
        if self.state == self.DIRTY:
            self.s, self.since = self.s * self.shrink, 0
        else:
            self.since += 1
            if self.since >= self.n:
                self.s, self.since = self.s * self.grow, 0
        self.state = self.READY
