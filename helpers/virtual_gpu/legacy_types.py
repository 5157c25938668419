"""Types of tensors by which older programs name a dtype and a device at once: `torch.cuda.FloatTensor`."""

from typing import Any

import torch
from torch import Tensor

from .factories import _on_cpu
from .moves import move
from .patches import Patches

_NAMES = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")


class _Type(type):
    """The class of such types, whose instances are tensors."""

    dtype: torch.dtype
    is_cuda = True

    def __call__(cls, *args: Any, **kwargs: Any) -> Tensor:
        host = getattr(torch, cls.__name__)
        if kwargs or any(not isinstance(size, int) for size in args):
            with _on_cpu():
                made = host(*args, **kwargs)
            return move(made, "cuda")
        return torch.empty(args or 0, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and value.is_cuda and value.dtype == cls.dtype


def install(patches: Patches) -> None:
    """Put the types into torch.cuda, and let one be the default."""
    for name in _NAMES:
        of_host = getattr(torch, f"{name}Tensor")
        own = _Type(f"{name}Tensor", (), {"__module__": "torch.cuda", "dtype": of_host.dtype})
        patches.put(torch.cuda, f"{name}Tensor", own)
    base = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        before = torch.get_default_dtype()
        patches.later(lambda: (torch.set_default_device(None), torch.set_default_dtype(before)))
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        base(name.replace(".cuda", ""))
        torch.set_default_device("cuda" if ".cuda." in name else None)

    patches.put(torch, "set_default_tensor_type", set_default_tensor_type)
