"""Apple's GPU in place of NVIDIA's: the functions below `torch.mps`, and the dtypes that Metal does not have.

The refusals are those of PyTorch's MPS backend. It has one GPU, no pinned memory and no streams.
"""

from typing import Any

import torch
from torch import Tensor

from . import generators, memory, mps_linear
from .dispatch import Pretence, _tensors
from .homes import home_of, index_of
from .machine import Machine
from .patches import Patches

_REFUSED = {
    torch.complex128: "ComplexDouble",
    torch.float8_e4m3fn: "Float8_e4m3fn",
    torch.float8_e5m2: "Float8_e5m2",
    torch.float8_e4m3fnuz: "Float8_e4m3fnuz",
    torch.float8_e5m2fnuz: "Float8_e5m2fnuz",
}


class ApplePretence(Pretence):
    """The mode of a machine with Apple's GPU."""

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: Any, homes: Any) -> Any:
        return _allowed(super()._run(func, args, kwargs, tensors, homes))

    def _moved(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return _allowed(super()._moved(func, args, kwargs))


def _allowed(result: Any) -> Any:
    """Return what an operation returned.

    Raises:
        TypeError: a tensor of a dtype that Metal does not have lies on the GPU.
    """
    for tensor in _tensors([result]):
        if tensor.dtype == torch.float64 and index_of(tensor) is not None:
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
                "Please use float32 instead."
            )
        if tensor.dtype in _REFUSED and index_of(tensor) is not None:
            raise TypeError(
                f"Trying to convert {_REFUSED[tensor.dtype]} to the MPS backend but it does not have support for that "
                "dtype."
            )
    return result


def _no_pinned_memory(self: Tensor, device: Any = None) -> Tensor:
    raise RuntimeError("Attempted to pin memory, but this machine has no memory to pin.")


def install(patches: Patches, machine: Machine) -> None:
    """Put Apple's functions in place of CUDA's, which this process does not have."""
    functions = {
        "_has_mps": True,
        "_mps_is_available": lambda: True,
        "_mps_is_on_macos_or_newer": lambda major, minor: major <= 14,
        "_mps_get_name": lambda: machine.name,
        "_mps_get_core_count": lambda: 10,
        "_mps_is_in_bad_fork": lambda: False,
        "_mps_get_default_generator": lambda: generators.default(0),
        "_mps_deviceSynchronize": lambda: None,
        "_mps_emptyCache": lambda: memory.gpu(0).cache.empty_cache(),
        "_mps_currentAllocatedMemory": lambda: memory.gpu(0).cache.allocated,
        "_mps_driverAllocatedMemory": lambda: memory.gpu(0).cache.reserved,
        "_mps_recommendedMaxMemory": lambda: machine.total_memory,
        "_get_accelerator": lambda check=False: torch.device("mps"),
    }
    patches.later(torch.backends.mps.is_available.cache_clear)
    patches.put_all(torch._C, functions)
    torch.backends.mps.is_available.cache_clear()
    accelerator = {
        "is_available": torch.backends.mps.is_available,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("mps"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "synchronize": torch.mps.synchronize,
    }
    patches.put_all(torch.accelerator, accelerator)
    patches.put_all(Tensor, {"mps": lambda self: self.to("mps"), "pin_memory": _no_pinned_memory})
    mps_linear.install(patches, lambda tensor: home_of(tensor) is not None)
