"""Micro-batches of an epoch, from any of them on, and how many of them are held at a time."""

import gc
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor

from .spy import Spy


class Stream:
    """A loader without a length: called with a number, it yields the micro-batches from this one on.

    Each micro-batch is a view of an array of its own, which lives as long as any view of it, so that a slice that
    is kept counts like the whole. A micro-batch that was drawn and not yet fed to the model is held, too, if only as a
    copy.

    Args:
        sizes: the rows of each micro-batch.
        spy: on the model that is to be fed.

    Attributes:
        held: the most micro-batches that were held at a time.
        starts: the numbers that it was called with.
    """

    def __init__(self, x: Tensor, y: Tensor, sizes: list[int], spy: Spy) -> None:
        self.held = 0
        self.starts: list[int] = []
        self._pairs = list(zip(x.split(sizes), y.split(sizes), strict=True))
        self._spy = spy
        self._arrays: list[weakref.ref] = []

    def __call__(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        self.starts.append(start)
        return self._from(start)

    def _from(self, start: int) -> Iterator[tuple[Tensor, Tensor]]:
        fed = len(self._spy.rows)
        for drawn, (x, y) in enumerate(self._pairs[start:], 1):
            array = x.numpy().copy()
            self._arrays.append(weakref.ref(array))
            own = torch.from_numpy(array)
            del array
            self.held = max(self.held, self._alive(), drawn - (len(self._spy.rows) - fed))
            yield own, y.clone()
            del own

    def _alive(self) -> int:
        gc.collect(0)
        return sum(array() is not None for array in self._arrays)
