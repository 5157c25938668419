"""Storages: what is saved, loaded, shared and resized goes through them."""

from typing import Any

import torch

from .homes import Home, gpu_device, gpu_index, home_of_storage, is_gpu
from .patches import Patches

_Storage = torch.UntypedStorage
_base_device = torch._C.StorageBase.device.__get__
_base_resize = torch._C.StorageBase.resize_
_base_new = _Storage.__new__


def _device(self: Any) -> torch.device:
    home = home_of_storage(self)
    return _base_device(self) if home is None or home.index is None else gpu_device(home.index)


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    device = kwargs.pop("device", None)
    device = None if device is None else torch.device(device)
    if device is not None and is_gpu(device):
        self = _base_new(cls, *args, **kwargs)
        self.home = Home(self, gpu_index(device))
        return self
    return _base_new(cls, *args, **kwargs) if device is None else _base_new(cls, *args, device=device, **kwargs)


def _to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
    device = gpu_device(device) if isinstance(device, int) else torch.device(device)
    if is_gpu(device) and device.index is None:
        device = gpu_device(gpu_index(device))
    if device == self.device:
        return self
    return _Storage(self.nbytes(), device=device).copy_(self, non_blocking)


def _resize(self: Any, nbytes: int) -> Any:
    _base_resize(self, nbytes)
    home = home_of_storage(self)
    if home is not None:
        home.resize(self)
    return self


def install(patches: Patches) -> None:
    """Teach `torch.UntypedStorage`."""
    methods = {
        "__new__": _new,
        "device": property(_device),
        "to": _to,
        "cuda": lambda self, device=None, non_blocking=False: _to(self, device="cuda" if device is None else device),
        "resize_": _resize,
        "is_pinned": lambda self, device="cuda": self.__dict__.get("pinned", False),
    }
    patches.put_all(_Storage, methods)
