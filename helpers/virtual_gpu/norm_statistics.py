"""What norms of 16-bit numbers keep for the backward pass: FP32 on CUDA, where the CPU's kernels keep 16 bits."""

from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_REDUCED = (torch.float16, torch.bfloat16)
_FORWARD = (aten.native_layer_norm.default, aten.native_batch_norm.default)
# Operation -> the places of its input, its weight and the two statistics.
_BACKWARD = {
    aten.native_layer_norm_backward.default: (1, 5, (3, 4)),
    aten.native_batch_norm_backward.default: (1, 2, (5, 6)),
}


def is_reduced_norm(func: Any, args: Any) -> bool:
    """Say whether an operation is LayerNorm or BatchNorm, or the backward pass of one, on 16-bit numbers."""
    if func in _FORWARD:
        return args[0].dtype in _REDUCED
    return func in _BACKWARD and args[1].dtype in _REDUCED


def reduced_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run it with the CPU's kernel. Its statistics are FP32 tensors, with the CPU's numbers."""
    if func in _FORWARD:
        out, *statistics = func(*args, **kwargs)
        return out, *(each.float() for each in statistics)
    x, weight, places = _BACKWARD[func]
    own = args[x] if args[weight] is None else args[weight]
    given = list(args)
    for place in places:
        if isinstance(args[place], Tensor):
            given[place] = args[place].to(own.dtype)
    return func(*given, **kwargs)
