"""Products and convolutions that are too large for a CPU to compute: their result is made of zeros.

A lab that finds a large GPU times operations on it which would keep a CPU busy for hours, and never looks at the
result. Shapes, types and homes are right all the same.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

LARGEST, LARGEST_CONVOLUTION = 2**35, 2**33  # FLOPs that are worth waiting for; convolutions come in loops of steps


def is_giant(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether an operation is a matrix product or a convolution with more FLOPs than are worth waiting for."""
    packet = func._overloadpacket
    if packet in _PRODUCTS:
        return flop_registry[packet](*args, **kwargs) > LARGEST
    if packet in _CONVOLUTIONS:
        return flop_registry[packet](*args, **kwargs, out_val=_on_meta(func, args, kwargs)) > LARGEST_CONVOLUTION
    return False


def shaped_like(func: Any, args: Any, kwargs: Any) -> Any:
    """Return zeros of the shapes, strides and types that `func` would return; with `out=`, fill that."""
    if isinstance(out := kwargs.get("out"), Tensor):
        return out.zero_()
    return tree_map_only(Tensor, _zeros, _on_meta(func, args, kwargs))


def _on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = tree_map_only(Tensor, _meta, (args, kwargs))
    return func(*args, **kwargs)


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _zeros(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()


_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten._scaled_mm}
_CONVOLUTIONS = {_aten.convolution, _aten.convolution_backward}
