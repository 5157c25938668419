"""What each step leaves behind: a program that keeps its losses, or its graphs, runs out of memory sooner or later."""

from collections import Counter
from dataclasses import dataclass

from .ledger import Ledger
from .owners import category_of

_STATE = {"parameters", "gradients", "optimizer state"}  # a gradient lives on until zero_grad
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

    The first step does not count, since it makes what stays for good; nor does the last, whose successor is not there.
    A step that frees as much of the earlier ones as it leaves behind only replaces it, as DDP does with its buckets.
    """
    marks, lines = ledger.marks, []
    for begin, end, next_end in zip(marks, marks[1:], marks[2:], strict=False):
        made, growth = Counter(), 0
        for place in range(begin, end):
            record = ledger.events[place]
            if record.index == index:
                growth += record.nbytes if record.born == place else -record.nbytes
            lives_on = record.died < 0 or record.died >= next_end
            if record.index == index and record.born == place and lives_on and category_of(record) not in _STATE:
                made[record.line] += record.nbytes
        lines.append(made if growth >= _LEAST else Counter())
    if not lines or min(made.total() for made in lines) < _LEAST:
        return None
    least = min(lines, key=Counter.total)
    return LeftBehind(least.total(), least.most_common(1)[0][0])
