"""Batches that know who drew them, for the probe of the prefetcher."""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from .patience import until

BEGINNING = -1  # where a source fails that cannot even be begun


class Planned(Exception):
    """The error that a source raises on purpose."""


def numbered(count: int) -> list[tuple[Tensor, ...]]:
    """Return batches of two rows whose labels are the number of the batch."""
    return [(torch.full((2,), float(k)), torch.tensor([k, k])) for k in range(count)]


class WatchedSource:
    """An iterable of `batches` that writes down the thread that draws each.

    Args:
        fails_at: raise `Planned` in place of this batch, or at the `BEGINNING`.
    """

    def __init__(self, batches: Iterable[Any], fails_at: int | None = None) -> None:
        self.batches, self.fails_at = batches, fails_at
        self.threads: list[threading.Thread] = []  # by batch, the thread that drew it
        self.error = Planned("This batch cannot be read.")

    def __iter__(self) -> Iterator[Any]:
        if self.fails_at == BEGINNING:
            raise self.error
        return self._draw()

    def _draw(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches):
            if number == self.fails_at:
                raise self.error
            self.threads.append(threading.current_thread())
            yield batch

    def settled(self, at_least: int) -> int:
        """Wait until `at_least` batches have been drawn, and a moment for one too many; return how many were."""
        until(lambda: len(self.threads) >= at_least)
        time.sleep(0.05)
        return len(self.threads)
