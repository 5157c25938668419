"""How tensors move between devices: `.to`, with its gradient going the other way."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .dispatch import thread
from .homes import _PLAIN, gpu_device, gpu_index, index_of, is_gpu, place, traced_device

_DEVICES: dict[int, torch.device] = {}
_base_to = Tensor.to


def device_of(index: int) -> torch.device:
    """Return the device of GPU `index`."""
    if index not in _DEVICES:
        _DEVICES[index] = gpu_device(index)
    return _DEVICES[index]


def resolved(device: Any) -> torch.device:
    """Return `device` with its index, as a real GPU would have it.

    Raises:
        AssertionError, RuntimeError: no GPU, or none of this number.
    """
    device = gpu_device(device) if isinstance(device, int) else torch.device(device)
    if not is_gpu(device):
        return device
    if device.index is None or device.type == "mps":
        return device_of(gpu_index(device))
    torch.cuda._lazy_init()
    if device.index >= torch.cuda.device_count():
        raise torch.AcceleratorError(
            "CUDA error: invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?"
        )
    return device


class _Move(torch.autograd.Function):
    """A copy to another device; its gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, destination: int | str, kwargs: dict[str, Any]) -> Tensor:
        ctx.source, ctx.dtype = index_of(x), x.dtype
        return _copy(x, destination, kwargs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _copy(gradient, "cpu" if ctx.source is None else ctx.source, {"dtype": ctx.dtype}), None, None


def _copy(x: Tensor, destination: int | str, kwargs: dict[str, Any]) -> Tensor:
    if traced_device(x) is not None:
        device = torch.device("cpu") if destination == "cpu" else device_of(destination)
        return torch.ops.aten._to_copy.default(x, dtype=kwargs.get("dtype"), device=device, pin_memory=False)
    thread.destination = destination
    try:
        result = _base_to(x, **kwargs | {"dtype": kwargs.get("dtype") or x.dtype, "copy": True})
    finally:
        thread.destination = None
    if destination != "cpu":
        place(result, destination)
    return result


def _read(self: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.device | None, dict[str, Any]]:
    """Return the device that a call of `.to` asks for, and its other arguments by name."""
    rest, device = list(args), kwargs.pop("device", None)
    other = kwargs.pop("other", None)
    if rest and isinstance(rest[0], Tensor):
        other = rest.pop(0)
    if other is not None:
        device, kwargs["dtype"] = other.device, other.dtype
        names = ["non_blocking", "copy"]
    elif rest and isinstance(rest[0], torch.dtype):
        names = ["dtype", "non_blocking", "copy"]
    else:
        if rest:
            device = rest.pop(0)
        names = ["dtype", "non_blocking", "copy"]
    kwargs |= dict(zip(names, rest, strict=False))
    kwargs.pop("non_blocking", None)
    if kwargs.get("dtype", 0) is None:
        del kwargs["dtype"]
    return None if device is None else resolved(device), kwargs


_base_parse = torch._C._nn._parse_to


def parse_to(*args: Any, **kwargs: Any) -> Any:
    """Stand for `torch._C._nn._parse_to`, which reads the arguments of `Module.to`: a number is a GPU."""
    args = tuple(map(_numbered, args))
    return _base_parse(*args, **{name: _numbered(value) for name, value in kwargs.items()})


def _numbered(value: Any) -> Any:
    return gpu_device(value) if type(value) is int else value


@functools.wraps(_base_to)
def move(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Stand for `torch.Tensor.to`."""
    if has_torch_function_unary(self):  # a subclass that watches what is called on it sees this call, too
        return handle_torch_function(move, (self,), self, *args, **kwargs)
    device, kwargs = _read(self, args, kwargs)
    if device is None:
        return _base_to(self, **kwargs) if kwargs else self
    here = self.device
    if any(place.type != "cpu" and not is_gpu(place) for place in (device, here)):
        if is_gpu(device):
            raise NotImplementedError("Cannot copy out of meta tensor; no data! Please use torch.nn.Module.to_empty().")
        return _base_to(self, device, **kwargs)
    if here == device:
        return _base_to(self, **kwargs) if kwargs else self
    destination = "cpu" if device.type == "cpu" else device.index
    if type(self) not in _PLAIN and _holds_tensors_alone(self):
        return _wrapper_to(self, device, kwargs)
    if self.requires_grad and torch.is_grad_enabled():
        kwargs.pop("copy", None)
        return _Move.apply(self, destination, kwargs)
    return _copy(self, destination, kwargs)


def _holds_tensors_alone(self: Tensor) -> bool:
    """Say whether `self` is a wrapper of tensors. A DTensor, which has a mesh as well, moves its one part itself."""
    return hasattr(type(self), "__tensor_flatten__") and all(
        isinstance(getattr(self, name), Tensor) for name in self.__tensor_flatten__()[0]
    )


def _wrapper_to(self: Tensor, device: torch.device, kwargs: dict[str, Any]) -> Tensor:
    names, context = self.__tensor_flatten__()
    inner = {name: move(getattr(self, name), device, **kwargs) for name in names}
    return type(self).__tensor_unflatten__(inner, context, self.shape, self.stride())
