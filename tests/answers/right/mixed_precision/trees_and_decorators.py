# trees and decorators

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map


def sgd_with_master(weight, master, gradient, lr):
    with torch.no_grad():
        torch.sub(master, gradient.float(), alpha=lr, out=master)
        weight.copy_(master.bfloat16())


PRODUCTS = (F.linear, F.conv2d, F.scaled_dot_product_attention, torch.matmul, torch.Tensor.matmul)
LOSSES = (F.cross_entropy, F.mse_loss)


class Autocast(TorchFunctionMode):
    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        for functions, dtype in ((PRODUCTS, self.dtype), (LOSSES, torch.float32)):
            if func in functions:
                args, kwargs = tree_map(
                    lambda x: x.type(dtype) if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x,
                    (args, kwargs),
                )
        return func(*args, **(kwargs or {}))


class Widened(TorchFunctionMode):
    narrow = {torch.bfloat16, torch.float16}

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        went_in = {x.dtype for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        if went_in & self.narrow and getattr(result, "dtype", None) == torch.float32:
            self.found += [func.__name__]
        return result


def safe(function, device_type):
    class Decorated(function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type, cast_inputs=torch.float32)
        def forward(ctx, *inputs):
            return function.forward(ctx, *inputs)

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, *gradients):
            return function.backward(ctx, *gradients)

    return Decorated
