# an optimizer, a table, a dataclass

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode


def sgd_with_master(weight, master, gradient, lr):
    parameter = nn.Parameter(master)  # shares its memory
    parameter.grad = gradient.float()
    torch.optim.SGD([parameter], lr=lr).step()
    weight.copy_(parameter.detach())


LOW_PRECISION = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Caster:
    def __init__(self, dtype):
        self.dtype = dtype

    def __call__(self, value):
        match value:
            case torch.Tensor() if torch.is_floating_point(value):
                return torch.ops.aten._to_copy(value, dtype=self.dtype)
            case _:
                return value


class Autocast(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.casters = dict.fromkeys(LOW_PRECISION, Caster(dtype)) | dict.fromkeys(LOSSES, Caster(torch.float32))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        caster = self.casters.get(func, lambda value: value)
        return func(*[caster(value) for value in args], **{k: caster(v) for k, v in (kwargs or {}).items()})


def gradients_of(optimizer):
    for group in optimizer.param_groups:
        yield from (p.grad for p in group["params"] if p.grad is not None)


@dataclass
class LossScaler:
    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    good: int = 0
    finite: bool | None = None

    def __post_init__(self):
        self.value = self.init_scale

    def get_scale(self):
        return float(self.value)

    def scale(self, loss):
        return torch.mul(loss, self.value)

    @torch.no_grad()
    def unscale_(self, optimizer):
        checks = [True]
        for gradient in gradients_of(optimizer):
            gradient /= self.value
            checks.append(bool(gradient.isfinite().all()))
        self.finite = all(checks)

    def step(self, optimizer):
        if self.finite is None:
            self.unscale_(optimizer)
        if self.finite:
            optimizer.step()
        return self.finite

    def update(self):
        match self.finite, self.good + 1 == self.growth_interval:
            case False, _:
                self.value, self.good = self.value * self.backoff_factor, 0
            case True, True:
                self.value, self.good = self.value * self.growth_factor, 0
            case _:
                self.good += 1
        self.finite = None
