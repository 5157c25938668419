"""A linear layer on Apple's GPU is one operation in each direction: `aten.linear` and `aten.linear_backward`.

Elsewhere it takes itself apart into products, and whoever watches operations sees `aten.addmm` and `aten.mm`.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .patches import Patches

aten = torch.ops.aten


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias, the product made of others; x is (..., in), weight (out, in)."""
    rows = x.reshape(-1, x.shape[-1])
    if bias is not None and x.dim() >= 2:
        return torch.addmm(bias, rows, weight.t()).view(*x.shape[:-1], weight.shape[0])
    product = x.matmul(weight.t())
    return product if bias is None else product + bias


def _gradients(x: Tensor, gradient: Tensor, weight: Tensor, wanted: list[bool]) -> tuple[Tensor | None, ...]:
    """Return the gradients of x, weight and bias, as far as they are wanted; `gradient` is (..., out)."""
    rows = gradient.reshape(-1, gradient.shape[-1])
    return (
        gradient @ weight if wanted[0] else None,
        rows.t() @ x.reshape(-1, x.shape[-1]) if wanted[1] else None,
        rows.sum(0) if wanted[2] else None,
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        with torch._C._AutoDispatchBelowAutograd():
            return aten.linear.default(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return aten.linear_backward.default(x, gradient, weight, list(ctx.needs_input_grad))


def install(patches: Patches, on_gpu: Callable[[Tensor], bool]) -> None:
    """Register the kernels; a layer for whose input `on_gpu` is false stays what it was."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return _Linear.apply(x, weight, bias) if on_gpu(x) else _product(x, weight, bias)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced is meant
        library.impl("linear", linear, "AutogradCPU")
        library.impl("linear", _product, "CPU")
        library.impl("linear_backward", _gradients, "CPU")
    patches.later(library._destroy)
