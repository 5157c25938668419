"""FLOPs of an operation for which PyTorch's `FlopCounterMode` has no formula.

On Apple's GPU the backward pass of a linear layer is one operation; elsewhere it is products, which are counted.
"""

import math
from collections.abc import Sequence

import torch


def _linear_backward(
    x: torch.Size, gradient: torch.Size, weight: torch.Size, wanted: Sequence[bool], out_shape: object = None
) -> int:
    """Return two products' FLOPs, or one's: x is (..., in), gradient (..., out), weight (out, in)."""
    return 2 * math.prod(gradient) * weight[1] * sum(wanted[:2])  # the bias takes sums only


FLOP_FORMULAS = {torch.ops.aten.linear_backward: _linear_backward}
