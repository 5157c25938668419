"""What autocast does to an operation, on each kind of device.

PyTorch keeps four lists a device: operations that run in 16 bits, operations that run in FP32, operations whose inputs
are brought to the widest dtype among them, and all others, which follow their input. Nothing is copied from these
lists here. The operation is run, and the dtype of its result tells. For a GPU that this machine does not have, a tensor
without values says that it is on a GPU: autocast believes it and casts, and only shapes and dtypes are worked out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

Operation = Callable[[Tensor, Tensor], Tensor]
KINDS = ("16 bits", "FP32", "widest", "follows")


class _SaysCuda(Tensor):
    """A tensor on the device "meta", without values, that says that it is on a CUDA GPU."""

    @staticmethod
    def __new__(cls: type, meta: Tensor) -> "_SaysCuda":
        """Wrap `meta`, of any shape and dtype."""
        wrapped = Tensor._make_wrapper_subclass(cls, meta.shape, dtype=meta.dtype, device="cuda:0")
        wrapped.meta = meta
        return wrapped

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrap(value: Any) -> Any:
            if isinstance(value, torch.device):
                return torch.device("meta")
            return value.meta if isinstance(value, cls) else value

        args, kwargs = tree_map(unwrap, (args, kwargs or {}))
        return tree_map(lambda value: cls(value) if isinstance(value, Tensor) else value, func(*args, **kwargs))


@contextmanager
def _autocast(device_type: str, dtype: torch.dtype) -> Iterator[None]:
    """Do what `torch.autocast` does; that one switches itself off where there is no such device."""
    before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])


def _inputs(device_type: str, *dtypes: torch.dtype) -> list[Tensor]:
    if device_type == "cuda" and not torch.cuda.is_available():
        return [_SaysCuda(torch.empty(16, 16, dtype=dtype, device="meta")) for dtype in dtypes]
    return [torch.rand(16, 16).to(device_type, dtype) for dtype in dtypes]


def autocast_rule(operation: Operation, device_type: str, dtype: torch.dtype) -> str:
    """Return which of the four `KINDS` of operation autocast takes `operation` for.

    Args:
        operation: takes two (16, 16) tensors, of which it may ignore the second, and returns a tensor.
        device_type: "cpu", "cuda", with a GPU or without, or "mps" on a machine that has one.
        dtype: the 16-bit dtype of the autocast region.
    """
    wide = torch.float32

    def result(*dtypes: torch.dtype) -> torch.dtype:
        with sdpa_kernel(SDPBackend.MATH):  # any kernel would do; to choose one, a CUDA build asks the driver
            return operation(*_inputs(device_type, *dtypes)).dtype

    with _autocast(device_type, dtype):
        from_wide, from_narrow = result(wide, wide), result(dtype, dtype)
    if from_wide == dtype:
        return "16 bits"
    if from_narrow == wide:
        return "FP32"
    try:
        result(wide, dtype)
    except RuntimeError:  # two dtypes are refused: does autocast bring them together?
        try:
            with _autocast(device_type, dtype):
                return "widest" if result(wide, dtype) == wide else "follows"
        except RuntimeError:
            return "follows"
    return "follows"
