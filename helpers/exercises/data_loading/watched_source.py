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
    """The error that a source, or a batch, raises on purpose."""


class Refuses:
    """Something in a batch that goes to no device: pinning and sending raise `error`."""

    def __init__(self, error: Planned) -> None:
        self.error = error

    def to(self, *_: Any, **__: Any) -> None:
        """Raise `error`."""
        raise self.error

    pin_memory = cuda = cpu = to


def numbered(count: int, first: int = 0, width: int = 2) -> list[tuple[Tensor, ...]]:
    """Return `count` batches of `width` tensors. The last one, the labels, is the number of the batch, from `first`."""
    numbers = range(first, first + count)
    return [(*(torch.full((2,), k + part / 4) for part in range(width - 1)), torch.tensor([k, k])) for k in numbers]


class WatchedSource:
    """An iterable of `batches` that logs the thread that draws each.

    Args:
        fails_at: raise `Planned` in place of this batch, or at the `BEGINNING`.
        pause: seconds that each draw takes.

    Attributes:
        begun: number of draws that have begun.
        threads: by batch, the thread that drew it.
    """

    def __init__(self, batches: Iterable[Any], fails_at: int | None = None, pause: float = 0.0) -> None:
        self.batches, self.fails_at, self.pause = batches, fails_at, pause
        self.begun, self.threads = 0, list[threading.Thread]()
        self.error = Planned("This batch cannot be read.")

    def __iter__(self) -> Iterator[Any]:
        if self.fails_at == BEGINNING:
            raise self.error
        return self._draw()

    def _draw(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches):
            self.begun += 1
            if number == self.fails_at:
                raise self.error
            time.sleep(self.pause)
            self.threads.append(threading.current_thread())
            yield batch

    def settled(self, at_least: int) -> int:
        """Wait until `at_least` batches have been drawn, and a moment for one too many; return how many were."""
        until(lambda: len(self.threads) >= at_least)
        time.sleep(0.05)
        return len(self.threads)
