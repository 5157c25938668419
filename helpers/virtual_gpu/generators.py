"""Streams of random numbers: each pretended GPU has one of its own, as each real one has.

A generator "on the GPU" is the CPU's kind with another label, so its numbers differ from a GPU's.
"""

from typing import Any

import torch

from . import memory
from .homes import gpu_device, gpu_index, is_gpu

_BaseGenerator = torch._C.Generator
_defaults: dict[int, Any] = {}
_devices: dict[int, torch.device] = {}  # by address: operations get a generator in another wrapper


class _Kind(type(_BaseGenerator)):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, _BaseGenerator)


class Generator(_BaseGenerator, metaclass=_Kind):
    """`torch.Generator`, also for a pretended GPU."""

    def __new__(cls, device: Any = "cpu") -> "Generator":
        """Return a generator of the CPU's kind, with the label of its device."""
        device = torch.device(device)
        if device.type != "cpu" and not is_gpu(device):
            return _BaseGenerator(device)
        self = _BaseGenerator.__new__(cls, device="cpu")
        if is_gpu(device):
            device = gpu_device(gpu_index(device))
            _devices[self._cdata] = device
        self._device = device
        return self

    def __init__(self, device: Any = "cpu") -> None:
        pass

    def __del__(self) -> None:
        _devices.pop(self._cdata, None)

    @property
    def device(self) -> torch.device:
        """Where its numbers are used."""
        return self._device


def default(index: int) -> Any:
    """Return the generator that GPU `index` uses when none is named."""
    if index not in _defaults:
        _defaults[index] = Generator(gpu_device(index))
        _defaults[index].manual_seed(torch.initial_seed() & (2**63 - 1))
    return _defaults[index]


def chosen(func: Any, args: Any, kwargs: dict[str, Any], index: int | None) -> dict[str, Any]:
    """Return the keyword arguments with the generator for a device; one that came by position is only checked.

    Raises:
        RuntimeError: the generator is that of another device.
    """
    given = kwargs.get("generator") or next((value for value in args if isinstance(value, _BaseGenerator)), None)
    if given is None:
        return kwargs if index is None else kwargs | {"generator": default(index)}
    kind = memory.machine.kind
    wanted, found = "cpu" if index is None else kind, kind if given._cdata in _devices else "cpu"
    if found != wanted:
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")
    return kwargs


def dropout(x: torch.Tensor, p: float, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand for `native_dropout` on GPU `index`, whose operator has no argument for a generator."""
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p, generator=default(index))
    return (x * mask).div_(1 - p), mask


def forget() -> None:
    """Drop the GPUs' streams."""
    _defaults.clear()
