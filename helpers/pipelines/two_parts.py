"""A linear layer whose backward pass comes in two parts: the gradient of its input now, those of its weights later.

With y = x Wᵀ + b and the gradient dy, the stage before waits for dx = dy W. No rank waits for dW = dyᵀ x and db before
the optimizer's step. So the layer may note down (x, dy) and work out dW when there is nothing else to do.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Backlog = list[tuple["LinearInTwoParts", Tensor, Tensor]]  # (layer, x, dy): weight gradients that are still to come
_backlog: Backlog | None = None


class _Product(torch.autograd.Function):
    """x Wᵀ + b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: "LinearInTwoParts") -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return F.linear(x, weight, bias)  # (rows, in) -> (rows, out)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dx = dy @ weight if ctx.needs_input_grad[0] else None
        if _backlog is None:
            return dx, dy.T @ x, dy.sum(0), None
        _backlog.append((ctx.layer, x.detach(), dy))  # an attached x would keep its graph
        return dx, None, None, None


class LinearInTwoParts(nn.Linear):
    """A linear layer for inputs (rows, in_features); as any other, but inside `weights_later`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x Wᵀ + b."""
        return _Product.apply(x, self.weight, self.bias, self)

    def add_weight_gradients(self, x: Tensor, dy: Tensor) -> None:
        """Do the second part: add dW and db to `.grad`."""
        for parameter, gradient in ((self.weight, dy.T @ x), (self.bias, dy.sum(0))):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


@contextlib.contextmanager
def weights_later() -> Iterator[Backlog]:
    """Let a backward pass leave out the linear layers' weight gradients; yield the list of what is left to do."""
    global _backlog
    _backlog = backlog = []
    try:
        yield backlog
    finally:
        _backlog = None
