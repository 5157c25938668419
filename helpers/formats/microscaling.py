"""Block scales and four-bit numbers, rounded by hand.

PyTorch can store MX and FP4 types, but it does not cast to four bits on a CPU. The rules are those of the OCP
Microscaling Formats specification: E2M1 has one fraction bit, the nearest number is taken, and of two that are
equally near the one with an even fraction.
"""

from collections.abc import Callable

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of E2M1, in the order of their patterns 000 to 111."""


def to_e2m1(x: Tensor) -> Tensor:
    """Round `x` to E2M1, ties to even. Returns FP32 of the same shape; numbers too large become 6, NaN stays NaN."""
    x = x.float()
    magnitudes = torch.tensor(E2M1, device=x.device)
    middles = (magnitudes[1:] + magnitudes[:-1]) / 2
    # A middle goes to the number below it, unless that has an odd pattern.
    middles[1::2] = torch.nextafter(middles[1::2], torch.zeros((), device=x.device))
    rounded = magnitudes[torch.bucketize(x.abs(), middles)]
    return torch.where(x.isnan(), x, torch.copysign(rounded, x))


def floor_power_of_two(x: Tensor) -> Tensor:
    """Return, for each number of `x` (positive and finite), the largest power of two that is not above it.

    It reads the exponent with `torch.frexp`. Logarithms are rounded: just below a power of two,
    `floor(log2(x))` may be one too high.
    """
    _, exponent = torch.frexp(x)  # x = f * 2^exponent, 1/2 <= f < 1
    return torch.ldexp(torch.ones_like(x), exponent - 1)


def quantize_blockwise(
    x: Tensor, size: int, scale_of: Callable[[Tensor], Tensor], to_format: Callable[[Tensor], Tensor]
) -> Tensor:
    """Round `x` block by block and return the numbers that the result stands for.

    Args:
        x: (rows, columns) in FP32; `size` divides columns.
        size: how many neighbors along a row share a scale.
        scale_of: given the blocks' largest magnitudes (rows, blocks, 1), none of them zero, returns their scales.
        to_format: rounds what has been divided by its scale.

    Returns:
        FP32 (rows, columns): rounded values times scales.
    """
    blocks = x.reshape(len(x), -1, size)
    scale = scale_of(blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30))
    return (to_format(blocks / scale) * scale).view(x.shape)
