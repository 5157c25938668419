# an optimizer, a table, a class made by type

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode


def sgd_with_master(weight, master, gradient, lr):
    parameter = nn.Parameter(master)  # shares its memory
    parameter.grad = gradient.float()
    torch.optim.SGD([parameter], lr=lr).step()
    weight.copy_(parameter.detach())


PRODUCTS = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
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
        self.casters = dict.fromkeys(PRODUCTS, Caster(dtype)) | dict.fromkeys(LOSSES, Caster(torch.float32))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        caster = self.casters.get(func, lambda value: value)
        return func(*[caster(value) for value in args], **{k: caster(v) for k, v in (kwargs or {}).items()})


class Widened(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        names = {str(getattr(value, "dtype", "")) for value in (*args, *(kwargs or {}).values())}
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype is torch.float32:
            self.found.extend([func.__name__] if names & {"torch.bfloat16", "torch.float16"} else [])
        return result


def safe(function, device_type):
    forward = torch.amp.custom_fwd(device_type=device_type, cast_inputs=torch.float32)(function.forward)
    backward = torch.amp.custom_bwd(device_type=device_type)(function.backward)
    return type(
        "Safe", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )
