"""Hollow storage: memory that has a size, an address and no data.

Nothing ever reads or writes it, so the operating system never gives it a page: a model of 70 billion parameters fits a
laptop. A storage is hollow from the operation that would have filled it until it dies. Small tensors with values that
are known (a batch of token ids, a mask, a learning rate) are not hollow: they are computed as usual, and what is
decided by them is decided rightly.
"""

import math
import mmap
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .homes import storage_of

SMALL_FLOATS, SMALL_INTEGERS = 2**10, 2**22  # elements; tensors up to this are computed where their inputs are known
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # MAP_NORESERVE, for which older Pythons have no name
_LARGE = 2**26  # bytes from which every allocation is of fresh pages, so that none of them is there


def is_small(numel: int, dtype: torch.dtype) -> bool:
    """Say whether a tensor is small enough to be computed."""
    return numel <= (SMALL_FLOATS if dtype.is_floating_point or dtype.is_complex else SMALL_INTEGERS)


def is_hollow(tensor: Tensor) -> bool:
    """Say whether `tensor` has no data."""
    storage = storage_of(tensor)
    return storage is not None and storage.__dict__.get("hollow", False)


def is_made_up(tensor: Tensor) -> bool:
    """Say whether `tensor` has data that stand in for data which do not exist."""
    storage = storage_of(tensor)
    return storage is not None and storage.__dict__.get("made_up", False)


def make_hollow(tensor: Tensor) -> Tensor:
    """Take a tensor's data away; return it."""
    storage = storage_of(tensor)
    if storage is not None:
        storage.hollow = True
        storage.__dict__.pop("mean", None)
        storage.__dict__.pop("choices", None)
        storage.__dict__.pop("parts", None)
    return tensor


def hollow_tensor(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new hollow tensor."""
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if math.prod(shape) else 0
    nbytes = extent * dtype.itemsize
    if nbytes < _LARGE:
        return make_hollow(torch.empty_strided(shape, stride, dtype=dtype))
    try:
        storage = torch.UntypedStorage(nbytes)  # which can be resized, as FSDP does
    except RuntimeError:  # more than the machine has
        return make_hollow(_mapped(nbytes).view(dtype).as_strided(shape, stride))
    return make_hollow(torch.empty(0, dtype=dtype).set_(storage, 0, tuple(shape), tuple(stride)))


def _mapped(nbytes: int) -> Tensor:
    """Return bytes that are mapped and never reserved, however much the machine has; the mapping goes with them."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, nbytes, flags=flags), dtype=torch.uint8)


def hint(tensor: Tensor, name: str) -> Any:
    """Return what is known of a hollow tensor without its values.

    Its "mean", among how many "choices" it picks, or its "parts": a few numbers, None for each that is unknown.
    """
    storage = storage_of(tensor)
    return None if storage is None else storage.__dict__.get(name)


def give_hint(tensor: Tensor, name: str, value: Any) -> None:
    """Say something of a hollow tensor's values."""
    storage = storage_of(tensor)
    if storage is not None and value is not None:
        storage.__dict__[name] = value
