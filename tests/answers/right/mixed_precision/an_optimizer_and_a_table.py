# an optimizer, and a table

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
