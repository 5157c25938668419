"""What an operation would return, from the shapes of its arguments: it runs on PyTorch's meta device, once a shape.

A training step repeats itself, layer by layer and step by step, so nearly every answer is known already.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

_META = torch.device("meta")
_NORM = torch.ops.aten.native_batch_norm.default
_GROUPED = torch.ops.aten._grouped_mm.default
_CONVOLUTIONS = {  # with the places of the input and the weight among their arguments
    torch.ops.aten.convolution.default: (0, 1),
    torch.ops.aten.convolution_backward.default: (1, 2),
}
_TRAINS = 5  # the place of `training` among its arguments
_WANTS_VALUES = (
    "data-dependent",  # what an operation of another library says of itself
    "cannot be called on meta tensors",
)
_known: dict[Any, Any] = {}


class Spec(NamedTuple):
    """A tensor without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def signature(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what decides the shapes of an operation's results."""
    return func, _key(args), _key(tuple(kwargs.items())) if kwargs else ()


def specs_of(key: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the results of an operation, with a `Spec` in place of each tensor.

    Raises:
        RuntimeError: in PyTorch's words, where the shapes do not go together.
        NotImplementedError: the shapes depend on values.
    """
    found = _known.get(key)
    if found is None:
        args, kwargs = _on_meta(args), {name: _on_meta(value) for name, value in kwargs.items()}
        if kwargs.get("device") is not None:
            kwargs["device"] = _META
        result = _run(func, args, kwargs)
        if func in _CONVOLUTIONS:
            result = _in_cudnns_order(result, *(args[place] for place in _CONVOLUTIONS[func]))
        found = _described(result)
        if func is _NORM and not args[_TRAINS]:  # neither the CPU nor cuDNN returns statistics, but meta does
            found[1:] = [spec._replace(shape=(0,)) for spec in found[1:]]
        _known[key] = found
    return found


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if func is _GROUPED and args[0].dtype in (torch.float32, torch.float16):  # meta knows the fast kernel alone
        return _run(func, [arg.bfloat16() for arg in args[:2]] + list(args[2:]), kwargs).to(args[0].dtype)
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if any(words in str(error) for words in _WANTS_VALUES):
            raise NotImplementedError(str(error)) from error
        raise


def _in_cudnns_order(result: Any, x: Tensor, weight: Tensor) -> Any:
    """Return a convolution's results with the channels last in memory, if they are in the input or in the weight.

    Meta puts them first, as it knows no device; `cudnn_conv_suggest_memory_format` (ATen/native/ConvUtils.h) decides.
    """
    if isinstance(result, (list, tuple)):  # of the backward pass; the bias has no channels to order
        parts = [part if part is None else _in_cudnns_order(part, x, weight) for part in result[:2]]
        return [*parts, *result[2:]]
    flat = x.dim() == 3  # one dimension is computed as two
    result, x, weight = (each.unsqueeze(2) if flat else each for each in (result, x, weight))
    orders = {suggest_memory_format(each) for each in (x, weight)} - {torch.contiguous_format}
    if orders:
        result = result.contiguous(memory_format=orders.pop())
    return result.squeeze(2) if flat else result


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _shape(value), value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, torch.Generator):
        return None
    return type(value), value


def _shape(tensor: Tensor) -> torch.Size:
    """Return the shape of a tensor; a parameter that has yet to learn its own keeps it back, and is empty."""
    try:
        return tensor.shape
    except RuntimeError:
        return torch.Size([0])


def _on_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(_shape(value), value.stride(), dtype=value.dtype, device=_META)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_on_meta, value))
    return None if isinstance(value, torch.Generator) else value


def _described(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Spec(tuple(value.shape), value.stride(), value.dtype)
    if isinstance(value, (list, tuple)):
        return [_described(part) for part in value]
    return value
