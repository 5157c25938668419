"""LoRA on ranks that split a model: weights that are not trained, and two narrow matmuls beside some of them.

A matmul with a weight that is not trained keeps nothing for the backward pass: the gradient of its input needs the
weight alone. An adapter keeps its input, and sends only its narrow middle: it multiplies this rank's tokens before they
are gathered, and adds up over tensor ranks before it widens (Hu et al. 2021; NeMo's `ParallelLinearAdapter`).
"""

from typing import Any

import torch
from torch import Tensor, nn

from .kernels import drop
from .layout import Layout
from .wire import Wire, enter, leave


class FrozenLinear(nn.Module):
    """A linear layer that is not trained, without a bias; its weight has one byte per element.

    Shape: weight (m, n); x (..., n) to (..., m) of the dtype of x.
    """

    def __init__(self, n: int, m: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(m, n, dtype=torch.uint8), requires_grad=False)
        self.bias = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weight.T."""
        return _Frozen.apply(x, self.weight)


def linear(layout: Layout, n: int, m: int, bias: bool) -> nn.Module:
    """Return a layer of a block: in eight bits where a layout does not train it and holds it so."""
    return FrozenLinear(n, m) if layout.fp8_params else nn.Linear(n, m, bias=bias)


def _wide(x: Tensor, weight: Tensor) -> Tensor:
    """Return a stand-in for `weight` that matmuls with x take: it has its shape, and no memory of its own."""
    return weight if weight.dtype == x.dtype else x.new_empty(()).expand(weight.shape)


class _Frozen(torch.autograd.Function):
    """A matmul with a weight that gets no gradient: it keeps nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return torch.matmul(x, _wide(x, weight).t())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return torch.matmul(gradient, _wide(gradient, ctx.weight)), None


class _FrozenProducts(torch.autograd.Function):
    """Matmuls of a gathered input with weights that get no gradient: nothing is kept, nothing gathered again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wire: Wire, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.wire, ctx.weights = wire, weights
        whole = x if wire.size == 1 else wire.all_gather(x, 1)
        return tuple(torch.matmul(whole, _wide(x, weight).t()) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_input = torch.matmul(gradients[0], _wide(gradients[0], ctx.weights[0]))
        for gradient, weight in zip(gradients[1:], ctx.weights[1:], strict=True):  # one matmul, really
            added = torch.addmm(of_input.flatten(0, 1), gradient.flatten(0, 1), _wide(gradient, weight))
            of_input = added.view(of_input.shape)
        of_input = of_input if ctx.wire.size == 1 else ctx.wire.reduce_scatter(of_input, 1)
        return of_input, None, *(None for _ in gradients)


def frozen_products(x: Tensor, weights: list[Tensor], wire: Wire) -> tuple[Tensor, ...]:
    """Return x @ w.T for each of `weights`, x gathered by tokens where there are several ranks.

    x: (B, S / size, D); results: (B, S, n).
    """
    return _FrozenProducts.apply(x, wire, *weights)


class Adapter(nn.Module):
    """up(down(dropout(x))): two narrow matmuls beside a layer that tensor ranks split.

    Args:
        layout: rank and dropout of the adapter.
        sizes: inputs and outputs of this rank.
        wire: over the tensor ranks.
        by_rows: whether the layer beside it is split by rows: each rank then has a part of the inputs, and tokens are
            added up in between; else each has a part of the outputs, and tokens are gathered in between.
    """

    def __init__(self, layout: Layout, sizes: tuple[int, int], wire: Wire, *, by_rows: bool = False) -> None:
        super().__init__()
        n, m = sizes
        self.down = nn.Linear(n, layout.lora_rank, bias=False)
        self.up = nn.Linear(layout.lora_rank, m, bias=False)
        self.rate, self.wire, self.by_rows, self.by_tokens = layout.lora_dropout, wire, by_rows, layout.splits_tokens

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, S, n) by rows, else (B, S, n) or (B, S / size, n); returns what the layer beside it returns."""
        pass_on = leave if self.by_rows else enter
        return self.up(pass_on(self.down(drop(x, self.rate)), self.wire, self.by_tokens))


def freeze(stage: nn.Module) -> None:
    """Train nothing in `stage` but its adapters."""
    adapters = {id(p) for m in stage.modules() if isinstance(m, Adapter) for p in m.parameters()}
    for parameter in stage.parameters():
        if parameter.is_floating_point():
            parameter.requires_grad_(id(parameter) in adapters)
