"""What a tensor says of itself."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import handle_torch_function, has_torch_function

from .dispatch import thread
from .homes import home_of, index_of, is_gpu, storage_of, traced_device
from .moves import device_of, move, parse_to
from .patches import Patches

_CPU = torch.device("cpu")
_base_device = torch._C.TensorBase.device.__get__


def _device(self: Tensor) -> torch.device:
    home = home_of(self)
    if home is None:
        return traced_device(self) or _base_device(self)
    index = thread.last if home.index is None else home.index
    return _base_device(self) if index is None else device_of(index)


_base_wrapper = Tensor._make_wrapper_subclass


def _wrapper(cls: type, *args: Any, **kwargs: Any) -> Tensor:
    """Make a wrapper, such as a DTensor; on which device it is, the tensors inside will say."""
    device = kwargs.get("device")
    if hasattr(cls, "__tensor_flatten__"):
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = _CPU
        args = tuple(_CPU if isinstance(value, torch.device) and value.type == "cuda" else value for value in args)
    return _base_wrapper(cls, *args, **kwargs)


def _no_numpy(self: Tensor) -> None:
    device = self.device
    if is_gpu(device):
        raise TypeError(
            f"can't convert {device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )


def pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """Stand for `torch.Tensor.pin_memory`: the copy only says that it is pinned.

    Raises:
        RuntimeError: a tensor on a GPU.
    """
    if index_of(self) is not None:
        raise RuntimeError(f"cannot pin 'torch.cuda.{_legacy_name(self)}' only dense CPU tensors can be pinned")
    if _is_pinned(self):
        return self
    copy = self.detach().clone()
    storage_of(copy).pinned = True
    return copy


def _is_pinned(self: Tensor, device: Any = None) -> bool:
    storage = None if isinstance(self, FakeTensor) else storage_of(self)
    return storage is not None and storage.__dict__.get("pinned", False)


_base_type = Tensor.type


def _legacy_name(self: Tensor) -> str:
    return _base_type(self).rpartition(".")[2]


def _type(self: Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    if dtype is None:
        return f"torch.cuda.{_legacy_name(self)}" if self.is_cuda else _base_type(self)
    name = dtype if isinstance(dtype, str) else ""
    if isinstance(dtype, type):
        name = f"{dtype.__module__}.{dtype.__name__}"
    if name.startswith("torch.cuda."):
        return _base_type(move(self, "cuda"), name.replace(".cuda", ""))
    return _base_type(move(self, _CPU) if name and self.is_cuda else self, dtype)


def announced(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of tensors that a subclass with a `__torch_function__` hears of, as it does of PyTorch's own."""

    def called(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        heard = (self, *(value for value in args if isinstance(value, Tensor)))
        if has_torch_function(heard):
            return handle_torch_function(called, heard, self, *args, **kwargs)
        return method(self, *args, **kwargs)

    called.__name__ = name  # by which torch.compile knows that it is a tensor's
    return called


def _cuda(
    self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
) -> Tensor:
    return move(self, "cuda" if device is None else device)


def _cpu(self: Tensor, memory_format: Any = torch.preserve_format) -> Tensor:
    return move(self, _CPU)


def _type_as(self: Tensor, other: Tensor) -> Tensor:
    return move(self, other.device, other.dtype)


def install(patches: Patches) -> None:
    """Teach `torch.Tensor`."""
    base_numpy, base_array = Tensor.numpy, Tensor.__array__

    def numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("force"):
            _no_numpy(self)
        return base_numpy(self, *args, **kwargs)

    def array(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        _no_numpy(self)
        return base_array(self, *args, **kwargs)

    patches.put(torch._C._nn, "_parse_to", parse_to)
    patches.put(Tensor, "device", property(_device))
    for kind in ("cuda", "cpu", "mps"):
        patches.put(Tensor, f"is_{kind}", property(lambda self, kind=kind: self.device.type == kind))
    patches.put(Tensor, "to", move)
    for name, method in {
        "get_device": lambda self: self.device.index if is_gpu(self.device) else -1,
        "cuda": _cuda,
        "cpu": _cpu,
        "type": _type,
        "type_as": _type_as,
        "numpy": numpy,
        "__array__": array,
        "pin_memory": pin_memory,
        "is_pinned": _is_pinned,
        "record_stream": lambda self, stream: None,
    }.items():
        patches.put(Tensor, name, announced(name, method))
    patches.put(Tensor, "_make_wrapper_subclass", staticmethod(_wrapper))
    lazy = (
        torch.nn.parameter.UninitializedTensorMixin
    )  # knows by identity what is allowed before a module has seen data
    allowed = [Tensor.to, Tensor.cuda, Tensor.cpu, Tensor.get_device]
    patches.put(lazy, "_allowed_methods", lazy._allowed_methods + allowed)
