"""Products that are too large for a CPU to compute: their result is made of zeros.

A lab that finds a large GPU times products on it which would keep a CPU busy for hours, and never looks at the result.
Shapes, types and homes are right all the same.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

LARGEST = 2**35  # FLOPs that are worth waiting for


def is_giant(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether an operation is a matrix product of more than `LARGEST` FLOPs."""
    packet = func._overloadpacket
    return packet in _PRODUCTS and flop_registry[packet](*args, **kwargs) > LARGEST


def shaped_like(func: Any, args: Any, kwargs: Any) -> Tensor:
    """Return zeros of the shape, strides and type that `func` would return; with `out=`, fill that."""
    if isinstance(out := kwargs.get("out"), Tensor):
        return out.zero_()
    on_meta = tree_map_only(Tensor, _meta, (args, kwargs))
    result = func(*on_meta[0], **on_meta[1])
    return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype).zero_()


def _meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


_aten = torch.ops.aten
_PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten._scaled_mm}
