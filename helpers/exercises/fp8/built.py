"""What the lab builds and later labs use: the course's version of it."""

from collections.abc import Callable

import torch
from torch import Tensor

from ...formats.microscaling import quantize_blockwise, to_e2m1
from ..reference.fp8 import current_scale, delayed_scale, quantize

__all__ = ["current_scale", "delayed_scale", "nvfp4", "one_scale", "quantize"]


def one_scale(x: Tensor) -> Tensor:
    """Round x to E4M3 with the scale of its own amax; return it in FP32."""
    scale = current_scale(x, torch.float8_e4m3fn)
    return quantize(x, torch.float8_e4m3fn, scale).float() * scale


def nvfp4(x: Tensor, to_format: Callable[[Tensor], Tensor] = to_e2m1) -> Tensor:
    """Round x (rows, n) to NVFP4: 16 values share a scale in E4M3, all share one in FP32; return it in FP32.

    Args:
        to_format: rounds what is within the range of E2M1.
    """
    whole = x.abs().max() / (6 * 448)  # so that the largest block scale is 448

    def block_scale(amax: Tensor) -> Tensor:
        return quantize(amax / 6 / whole, torch.float8_e4m3fn).float().clamp(min=2**-9) * whole

    return quantize_blockwise(x, 16, block_scale, to_format)
