"""What a rank computes, and when: each block of attention, with the scores that it takes.

A log can also set the pace. Four ranks on a laptop fight for its cores, which would hide who waits for whom. So with
a pace each block *waits* until its time is up, in proportion to its scores; the arithmetic is done within that time,
and the messages are real.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

PRODUCTS = {"forward": 2, "backward": 5}  # of matrices, in a block: scores are computed again in the backward pass


class Entry(NamedTuple):
    """One block: "forward" or "backward", its scores times the products that they take, from when until when."""

    kind: str
    work: float
    start: float
    end: float


@dataclass
class BlockLog:
    """Notes the blocks of attention that this process computes in the `with` block.

    Attributes:
        pace: seconds for each unit of work; 0: as fast as they go.
        entries: in order.
    """

    pace: float = 0.0
    entries: list[Entry] = field(default_factory=list)

    def __enter__(self) -> "BlockLog":
        _open.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open.remove(self)

    def note(self, kind: str, work: float, start: float) -> None:
        """Write down a block that is done; with a pace, wait until its time is up."""
        time.sleep(max(0.0, start + work * self.pace - time.perf_counter()))
        self.entries.append(Entry(kind, work, start, time.perf_counter()))

    @property
    def work(self) -> float:
        """Scores that all blocks took together, times the products that each took part in."""
        return sum(entry.work for entry in self.entries)


_open: list[BlockLog] = []  # logs of this process
_at_work: list[str] = []  # the kinds of the blocks that are being computed


def attending() -> bool:
    """Return whether a block of attention is being computed."""
    return bool(_at_work)


@contextlib.contextmanager
def written_down(kind: str, rows: int, columns: int, causal: bool) -> Iterator[None]:
    """Write what the `with` block computes into the logs that are open: the scores of rows x columns, or half."""
    start = time.perf_counter()
    _at_work.append(kind)
    try:
        yield
    finally:
        _at_work.pop()
    for log in _open:
        log.note(kind, PRODUCTS[kind] * (rows * (rows + 1) / 2 if causal else rows * columns), start)
