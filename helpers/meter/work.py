"""What one operation has to do, whatever machine does it: FLOPs, and bytes to read and to write.

A roofline turns work into seconds: the longer of FLOPs over a rate and bytes over a bandwidth, and a launch.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .flops import flops_of
from .kinds import Kind, kind_of
from .operations_seen import each_operation
from .tensor_parts import flat_tensors
from .traffic import bytes_moved


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one operation.

    Attributes:
        name: as PyTorch prints it, without the overload: "aten.mm".
        kind: what bounds it when it is large: see `kinds.py`.
        flops: those of products, convolutions and attention, causal attention by "causal half", which is what has to be
            computed; 0 for other kinds.
        bytes: read and written, each tensor once.
        dtype: of the numbers it works on: "float32".
        shape: of a product, (m, n, k), or (b, m, n, k) where each of b products has weights of its own. Of a
            convolution the product of a group: m = batch × places, n = the group's channels out, k = its channels in ×
            places in the filter; the FLOPs say how many groups there are. Of attention (batch × heads, queries, keys,
            numbers in a head). Else (). A backward operation has the shape of its forward one, and the FLOPs of more
            products.
        layout: how the operands lie in memory. Of a product its two matrices, each "n" by rows or "t" by columns
            (transposed): a linear layer's forward pass is "nt", its gradients are "nn" and "tn". Of a convolution of
            images "nchw", or "nhwc" in PyTorch's memory format `channels_last`. Else "".
    """

    name: str
    kind: Kind
    flops: int
    bytes: int
    dtype: str
    shape: tuple[int, ...]
    layout: str = ""


def work_of(func: Any, args: Any, kwargs: Any, result: Any) -> Work | None:
    """Return the work of one operation, as a `TorchDispatchMode` sees it; None for views and bare allocations.

    Args:
        func: as the dispatcher calls it: `torch.ops.aten.mm.default`.
        args, kwargs: what it was given; fake tensors will do.
        result: what it returned.
    """
    name = _names(func)
    kind = kind_of(name[0])
    if kind is None:
        return None
    flops = flops_of(func, args, kwargs, result, "causal half")
    moved = sum(bytes_moved(func, args, kwargs, result))
    shape = _shape(name[1], kind, args, result) if flops else ()
    return Work(name[1], kind, flops, moved, _dtype(args, result), shape, _layout(name[1], kind, args) if shape else "")


def works_of(fn: Callable[[], object]) -> list[Work]:
    """Run `fn()` and return the work of its operations in order, those of a backward pass inside included."""
    works: list[Work] = []

    def see(func: Any, args: Any, kwargs: Any, result: Any) -> None:
        work = work_of(func, args, kwargs, result)
        if work is not None:
            works.append(work)

    each_operation(fn, see)
    return works


@functools.cache
def _names(func: Any) -> tuple[str, str]:
    """Return the name as the dispatcher writes it ("aten::mm") and as PyTorch prints it ("aten.mm")."""
    name = func._schema.name
    return name, name.replace("::", ".")


def _dtype(args: Any, result: Any) -> str:
    """Return the dtype of the first tensor with fractions; of the first tensor, if none has them."""
    tensors = [*flat_tensors(args), *flat_tensors((result,))]
    dtypes = [tensor.dtype for tensor in tensors]
    chosen = next((dtype for dtype in dtypes if dtype.is_floating_point), dtypes[0] if dtypes else torch.uint8)
    return str(chosen).removeprefix("torch.")


def _shape(name: str, kind: Kind, args: Any, result: Any) -> tuple[int, ...]:
    """Return the shape of an operation that has FLOPs."""
    plain = name.partition(".")[2]
    if kind == "convolution":
        back = plain.endswith("_backward")  # takes the gradient of the output first, and the sizes of the bias
        output, x, weight = args[:3] if back else (result, *args[:2])
        transposed, groups = args[7 if back else 6], args[9 if back else 8]
        places = x if transposed else output  # of a transposed convolution, those of its input
        return x.shape[0] * math.prod(places.shape[2:]), weight.shape[0] // groups, math.prod(weight.shape[1:])
    if kind == "attention":
        if not plain.startswith("_scaled_dot_product_"):  # packed sequences: their lengths are in a tensor
            return ()
        q, k = args[1:3] if plain.endswith("_backward") else args[:2]
        return math.prod(q.shape[:-2]), q.shape[-2], k.shape[-2], q.shape[-1]
    if plain in ("linear", "linear_backward"):
        x, weight = args[0], args[1 if plain == "linear" else 2]
        return x.numel() // x.shape[-1], weight.shape[0], weight.shape[1]
    if plain.startswith("mkldnn_rnn_layer"):
        x, of_inputs, of_states = args[:3]
        return x.numel() // x.shape[-1], of_inputs.shape[0], of_inputs.shape[1] + of_states.shape[1]
    if plain.startswith("_cudnn_rnn"):  # as if all its matrices were side by side
        x, weights = args[:2]
        width, numbers = weights[0].shape[0], sum(weight.numel() for weight in weights if weight.dim() > 1)
        return x.numel() // x.shape[-1], width, numbers // width
    left, right = _factors(name, args)
    if right.dim() == 1:
        return left.shape[0], 1, left.shape[1]
    *batch, m, k = left.shape
    n = right.shape[-1]
    if not batch:
        return m, n, k
    return (batch[0] * m, n, k) if right.stride(0) == 0 else (batch[0], m, n, k)


def _factors(name: str, args: Any) -> tuple[Tensor, Tensor]:
    """Return the two tensors that a product multiplies; addmm takes first what it adds to."""
    left, right = args[1:3] if "add" in name else args[:2]
    return left, right


def _layout(name: str, kind: Kind, args: Any) -> str:
    """Return how the operands of a product or a convolution lie in memory."""
    if kind == "matmul" and "_cudnn_rnn" not in name:
        return "".join(map(_lies, _factors(name, args)))
    if kind == "convolution":
        x = args[1] if name.endswith("_backward") else args[0]
        if x.dim() == 4:
            return "nchw" if x.is_contiguous() else "nhwc"
    return ""


def _lies(matrix: Tensor) -> str:
    """Return "t" if the columns of a matrix lie one after another in memory, and not its rows; else "n"."""
    return "t" if matrix.dim() > 1 and matrix.stride(-2) == 1 and matrix.stride(-1) != 1 else "n"
