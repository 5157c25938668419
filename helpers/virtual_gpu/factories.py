"""Factories: where new tensors are made, and which are pinned."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.jit import _builtins as builtins
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from .homes import home_of, is_gpu, storage_of
from .moves import move, resolved
from .patches import Patches
from .tensors import pin_memory

_FACTORIES = """
    empty zeros ones full rand randn randint randperm arange range linspace logspace eye empty_strided normal
    tril_indices triu_indices empty_like zeros_like ones_like full_like rand_like randn_like randint_like
    empty_permuted
"""


def _wants_gpu(device: Any) -> bool:
    return device is not None and (isinstance(device, int) or is_gpu(torch.device(device)))


def _made_then_moved(function: Any) -> Any:
    """Make `torch.tensor` and its like work on the CPU and move the result."""

    @functools.wraps(function)
    def made(data: Any, *args: Any, **kwargs: Any) -> Tensor:
        device, pinned = kwargs.pop("device", None), kwargs.pop("pin_memory", False)
        if device is None:
            device = _context_device()
            if device is None and function.__name__ in ("as_tensor", "asarray") and isinstance(data, Tensor):
                device = data.device
        if device is not None and not _wants_gpu(device):
            same = isinstance(data, Tensor) and home_of(data) and torch.device(device).type == "cpu"
            return function(data.cpu() if same else data, *args, device=device, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        with _on_cpu():
            result = function(data, *args, **kwargs)
        if device is not None:
            result = move(result, device)
        if pinned:
            result = pin_memory(result)
        return result.requires_grad_() if requires_grad else result

    return made


def _context_device() -> torch.device | None:
    """Return the device of the nearest `with torch.device(...)`."""
    modes = reversed(_get_current_function_mode_stack())
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)


class _on_cpu:
    """Keeps `with torch.device("cuda")` away from a call inside."""

    def __enter__(self) -> None:
        self._inside = torch._C.DisableTorchFunction()
        self._inside.__enter__()

    def __exit__(self, *error: object) -> None:
        self._inside.__exit__(*error)


def _new_tensor(self: Tensor, data: Any, **kwargs: Any) -> Tensor:
    kwargs.setdefault("device", self.device)
    kwargs.setdefault("dtype", self.dtype)
    return torch.tensor(data, **kwargs)


def _factory(function: Any) -> Any:
    """Let a factory run where the mode is off, and give its result pinned memory where that is asked for."""
    from . import install as installed

    @functools.wraps(function)
    def made(*args: Any, **kwargs: Any) -> Tensor:
        pinned = kwargs.pop("pin_memory", False)
        device = kwargs.get("device")
        if device is not None and _wants_gpu(device):
            if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
                kwargs["device"] = resolved(device)
            if torch._C._len_torch_dispatch_stack() == 0:
                with installed.mode():
                    return function(*args, **kwargs)
        result = function(*args, **kwargs)
        if pinned and not home_of(result):
            storage_of(result).pinned = True
        return result

    return made


def _put(patches: Patches, owner: Any, name: str, made: Any) -> None:
    """Put a function in place of a builtin one. TorchScript, which knows builtin functions by identity, knows it, too.

    Args:
        patches: puts it back.
        owner, name: where it is.
        made: what takes its place.
    """
    operator = builtins._get_builtin_table().get(id(getattr(owner, name)))
    patches.put(owner, name, made)
    if operator is not None:
        builtins._register_builtin(made, operator)
        patches.later(lambda: builtins._get_builtin_table().pop(id(made), None))


def install(patches: Patches) -> None:
    """Teach the functions of torch that make tensors."""
    for name in ("tensor", "as_tensor", "asarray", "scalar_tensor", "sparse_coo_tensor"):
        _put(patches, torch, name, _made_then_moved(getattr(torch, name)))
    patches.put(Tensor, "new_tensor", _new_tensor)
    for name in _FACTORIES.split():
        _put(patches, torch, name, _factory(getattr(torch, name)))
    for name in ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided"):
        patches.put(Tensor, name, _factory(getattr(Tensor, name)))
