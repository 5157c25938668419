"""Traits of an operation that make it faster or slower on a GPU than its FLOPs and bytes suggest.

Kernels are fastest in the usual case. In 16 bits that is a matmul whose rows all begin at a multiple of 16 bytes, and a
convolution that mixes many channels. A vocabulary of 50,257 tokens breaks the first, one filter per channel the second.
"""

import math
from typing import Literal

from ..work import Work

Trait = Literal["unaligned", "channels last", "depthwise", "depthwise channels last"]

_SIXTEEN_BITS = ("float16", "bfloat16")
_ALIGNED = 8  # numbers of 16 bits in 16 bytes, which a thread loads at once
_SMALL_FILTER = 5 * 5  # places; published steps with 7 x 7 (ConvNeXt) take about as long as their bytes


def trait_of(work: Work) -> Trait | None:
    """Return the trait of an operation in 16 bits; None in the usual case, and for other dtypes."""
    if work.dtype not in _SIXTEEN_BITS or len(work.shape) < 3:
        return None
    if work.kind == "matmul" and len(work.layout) == 2:
        return None if all(side % _ALIGNED == 0 for side in _row_lengths(work)) else "unaligned"
    if work.kind != "convolution" or not work.layout:
        return None
    channels_last = work.layout == "nhwc"
    if _is_depthwise(work):
        return "depthwise channels last" if channels_last else "depthwise"
    return "channels last" if channels_last else None


def _row_lengths(work: Work) -> tuple[int, int, int]:
    """Return how many numbers follow one another in memory in the left matrix, the right one and the result."""
    m, n, k = work.shape[-3:]
    left, right = work.layout
    return (k if left == "n" else m), (n if right == "n" else k), n


def _is_depthwise(work: Work) -> bool:
    """Say whether a convolution has one small filter per channel. A backward pass does the FLOPs of up to two."""
    _, channels_out, filter_size = work.shape
    groups = work.flops / (2 * math.prod(work.shape))
    return channels_out == 1 and groups > 2 and filter_size <= _SMALL_FILTER
