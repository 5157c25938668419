"""A step of a block on one rank: results, collectives, saved bytes, and how far a tensor is from the right one."""

from typing import Any

from torch import Tensor, nn

from ...meter.saved_tensors import saved_tensor_bytes
from ...ranks.collectives import Collectives
from .block import C, T


def step(block: nn.Module, x: Tensor) -> dict[str, Any]:
    """Run a block forward and backward on x, the full input or this rank's part of its tokens."""
    x = x.detach().clone().requires_grad_()
    with Collectives() as forward:
        y = block(x)
    with Collectives() as backward:
        (y.square().sum() / (2 * T * C)).backward()
    return {"y": y.detach(), "x": x.grad, "forward": forward.calls, "backward": backward.calls}


def relative(seen: Tensor | None, right: Tensor) -> float | None:
    """Return |seen - right| / |right|, or None for a missing gradient."""
    return None if seen is None else ((seen.cpu() - right.cpu()).norm() / right.cpu().norm()).item()


def saved_by(block: nn.Module, x: Tensor) -> int:
    """Return the bytes that a block saves for its backward pass, parameters aside."""
    x = x.detach().clone().requires_grad_()
    return saved_tensor_bytes(lambda: block(x), besides=block.parameters())
