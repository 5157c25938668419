"""Floating-point operations (FLOPs), counted once for meter and planner.

A product of (m, k) and (k, n) takes 2·m·n·k FLOPs: a multiplication and an addition for each of m·n·k pairs. Counted
are products, convolutions and attention. The rest is left out, as in everything called MFU: it is bound by memory.

Causal attention is counted in two ways, and comparing a figure of one with a figure of the other misleads:

"full square": every query meets every key, as PyTorch's `FlopCounterMode`, nanoGPT and torchtitan count.
"causal half": half of that, as Megatron counts; a fused kernel skips the other half.

The formulas are those of `torch.utils.flop_counter`, except where it has none (on a CPU fused attention and recurrent
layers, the linear layer of Apple's GPU, products with a vector) or one that counts too much (the backward pass of
grouped convolutions).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from ..core import compiler as compiler  # says how Triton runs its kernels, before the next import imports Triton

# isort: split
from torch.utils.flop_counter import flop_registry

from .operations_seen import each_operation

Causal = Literal["full square", "causal half"]

aten = torch.ops.aten


def flops_of(func: Any, args: Any, kwargs: Any, result: Any, causal: Causal = "full square") -> int:
    """Return the FLOPs of one operation: 0 for one that is neither a product, a convolution nor attention.

    Args:
        func: as the dispatcher calls it: `torch.ops.aten.mm.default`.
        args, kwargs: what it was given; fake tensors will do.
        result: what it returned.
        causal: how attention with `is_causal=True` counts.
    """
    formula = _formula(func._overloadpacket)
    if formula is not None:
        flops = formula(*args)
    elif func._overloadpacket in flop_registry:
        flops = flop_registry[func._overloadpacket](*args, **kwargs, out_val=result)
    else:
        return 0
    return flops // 2 if causal == "causal half" and _is_causal(func, args, kwargs) else flops


def count_flops(fn: Callable[[], object], causal: Causal = "full square") -> int:
    """Run `fn()` and return the FLOPs of all its operations, those of a backward pass inside included.

    What activation checkpointing recomputes counts as often as it runs. A compiled function runs uncompiled meanwhile.
    """
    flops = 0

    def see(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        nonlocal flops
        flops += flops_of(func, args, kwargs, result, causal)

    each_operation(fn, see)
    return flops


# -- formulas


def _matrix_times_vector(matrix: Tensor, _: Tensor) -> int:
    return 2 * matrix.numel()


def _linear(x: Tensor, weight: Tensor, *_: object) -> int:
    """Of x (..., in) and weight (out, in), on Apple's GPU."""
    return 2 * x.numel() * weight.shape[0]


def _linear_backward(x: Tensor, gradient: Tensor, weight: Tensor, wanted: list[bool]) -> int:
    """Of x (..., in), gradient (..., out) and weight (out, in): a product each for x and weight; the bias is a sum."""
    return 2 * gradient.numel() * weight.shape[1] * sum(wanted[:2])


def _recurrent(x: Tensor, of_inputs: Tensor, of_states: Tensor, *_: object) -> int:
    """Of x (..., in), weights (gates × hidden, in) and (gates × hidden, hidden): two products for each token."""
    return 2 * (x.numel() // x.shape[-1]) * (of_inputs.numel() + of_states.numel())


def _recurrent_layers(x: Tensor, weights: list[Tensor], *_: object) -> int:
    """Of x (..., in) and the weights of all layers: a product with each matrix for each token."""
    return 2 * (x.numel() // x.shape[-1]) * sum(weight.numel() for weight in weights if weight.dim() > 1)


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *settings: Any) -> int:
    """As many FLOPs as the forward pass for the gradient of the input, and as many for that of the weight."""
    transposed, wanted = settings[4], settings[7]
    places = math.prod((x if transposed else gradient).shape[2:])
    return 2 * x.shape[0] * places * weight.numel() * sum(wanted[:2])


def _attention(q: Tensor, k: Tensor, v: Tensor, *_: object) -> int:
    """Of q (B, heads, queries, d), k (B, ..., keys, d), v (B, ..., keys, e): the scores, and their product with v."""
    return 2 * math.prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + v.shape[-1])


def _attention_backward(_: Tensor, q: Tensor, k: Tensor, v: Tensor, *__: object) -> int:
    """The scores once more, then the gradients of the scores, of q, k and v: five products where forward has two."""
    return 2 * math.prod(q.shape[:-1]) * k.shape[-2] * (3 * q.shape[-1] + 2 * v.shape[-1])


_FORMULAS: dict[Any, Callable[..., int]] = {
    aten.mv: _matrix_times_vector,
    aten.addmv: lambda _, matrix, vector: _matrix_times_vector(matrix, vector),
    aten.linear: _linear,
    aten.linear_backward: _linear_backward,
    aten.mkldnn_rnn_layer: _recurrent,
    aten.mkldnn_rnn_layer_backward: lambda *args: 2 * _recurrent(*args),
    aten._cudnn_rnn: _recurrent_layers,
    aten._cudnn_rnn_backward: lambda *args: 2 * _recurrent_layers(*args),
    aten.convolution_backward: _convolution_backward,
}


@functools.cache
def _formula(packet: Any) -> Callable[..., int] | None:
    name = packet._qualified_op_name
    if name.startswith("aten::_scaled_dot_product_"):
        return _attention_backward if name.endswith("_backward") else _attention
    return _FORMULAS.get(packet)


def _is_causal(func: Any, args: Any, kwargs: Any) -> bool:
    position = _position(func, "is_causal")
    return kwargs.get("is_causal", position is not None and position < len(args) and args[position])


@functools.cache
def _position(func: Any, name: str) -> int | None:
    """Return which argument of `func` has that name; None if none has."""
    names = [argument.name for argument in func._schema.arguments]
    return names.index(name) if name in names else None
