"""What each step leaves behind: a program that keeps its losses, or its graphs, runs out of memory sooner or later."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from .ledger import Ledger
from .owners import category_of

_STATE = {"parameters", "gradients", "optimizer state"}  # a gradient lives on until zero_grad
_STEPS = 3  # that a program has to take
_LEAST = 2**20  # bytes: losses as numbers do no harm


@dataclass(frozen=True)
class LeftBehind:
    """Memory that a step made and the next one did not free.

    Attributes:
        nbytes: of each step.
        line: of the program, that made most of it.
    """

    nbytes: int
    line: str


def left_behind(ledger: Ledger, index: int) -> LeftBehind | None:
    """Return what every step leaves on GPU `index`; None where it is little, or the steps are fewer than three.

    The first step does not count, since it makes what stays for good. A step that frees as much as it leaves behind
    leaves nothing, as with DDP's new buckets. Of the last step, whose successor is not there, only the growth counts.
    """
    marks, lines = ledger.marks, []
    grows = all(_growth(ledger, index, *step) >= _LEAST for step in pairwise(marks))
    if len(marks) < _STEPS or not grows:
        return None
    for begin, end, next_end in zip(marks, marks[1:], marks[2:], strict=False):
        made = Counter()
        for place in range(begin, end):
            record = ledger.events[place]
            lives_on = record.died < 0 or record.died >= next_end
            if record.index == index and record.born == place and lives_on and category_of(record) not in _STATE:
                made[record.line] += record.nbytes
        lines.append(made)
    least = min(lines, key=Counter.total)
    return LeftBehind(least.total(), least.most_common(1)[0][0]) if least.total() >= _LEAST else None


def _growth(ledger: Ledger, index: int, begin: int, end: int) -> int:
    """Return by how many bytes more of GPU `index` is held at place `end` of the events than at `begin`."""
    return sum(
        record.nbytes if record.born == place else -record.nbytes
        for place, record in enumerate(ledger.events[begin:end], begin)
        if record.index == index
    )
