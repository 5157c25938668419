"""A tensor that knows where it went: pinning and sending are seen on a machine without a GPU, too."""

import threading
from typing import Any

import torch
from torch import Tensor


class Parcel(Tensor):
    """A tensor that writes down its journey in `log`, and claims to be where it was sent: no device is needed."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def of(cls, number: int, log: list[dict[str, Any]]) -> "Parcel":
        """Return a parcel of one number that has been nowhere."""
        parcel = cls._make_subclass(cls, torch.tensor(number))
        parcel.number, parcel.log, parcel.pinned, parcel.place = number, log, False, "cpu"
        return parcel

    def _gone(self, step: str, **how: Any) -> "Parcel":
        self.log.append({"number": self.number, "step": step, "thread": threading.get_ident(), **how})
        other = Parcel.of(self.number, self.log)
        other.pinned, other.place = self.pinned, self.place
        return other

    def pin_memory(self, *_: Any) -> "Parcel":
        """Return a pinned parcel."""
        pinned = self._gone("pin")
        pinned.pinned = True
        return pinned

    def is_pinned(self, *_: Any) -> bool:
        """Return whether it is a pinned one."""
        return self.pinned

    def to(self, device: Any = None, dtype: Any = None, non_blocking: bool = False, **_: Any) -> "Parcel":
        """Return a parcel that is on `device`."""
        sent = self._gone("send", pinned=self.pinned, non_blocking=bool(non_blocking))
        sent.place, sent.pinned = str(torch.device(device)), False
        return sent

    def cuda(self, device: Any = None, non_blocking: bool = False) -> "Parcel":
        """Return a parcel that is on a GPU: the current one, unless `device` says which."""
        return self.to("cuda" if device is None else device, non_blocking=non_blocking)
