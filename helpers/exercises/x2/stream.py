"""Micro-batches that can be read once, and how many of them are held at a time."""

import gc
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor

from .spy import Spy


class Stream:
    """Yields micro-batches like a loader without a length.

    Each micro-batch is a view of an array of its own, which lives as long as any view of it, so that a slice that
    somebody keeps counts like the whole. What was drawn and not yet fed to the model is held, too, if only as a copy.

    Args:
        sizes: the rows of each micro-batch.
        spy: on the model that is to be fed.

    Attributes:
        held: the most micro-batches that were held at a time.
    """

    def __init__(self, x: Tensor, y: Tensor, sizes: list[int], spy: Spy) -> None:
        self.held = 0
        self._pieces = zip(x.split(sizes), y.split(sizes), strict=True)
        self._spy = spy
        self._arrays: list[weakref.ref] = []

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for drawn, (x, y) in enumerate(self._pieces, 1):
            array = x.numpy().copy()
            self._arrays.append(weakref.ref(array))
            piece = torch.from_numpy(array)
            del array
            self.held = max(self.held, self._alive(), drawn - len(self._spy.rows))
            yield piece, y.clone()
            del piece

    def _alive(self) -> int:
        gc.collect(0)
        return sum(array() is not None for array in self._arrays)
