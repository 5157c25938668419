"""Seconds of many small pieces of work, each measured in several rounds.

A busy moment of the machine lasts longer than a small piece of work. So the runs of a piece are not taken one after
another: all pieces are measured, then all of them again. The median of a piece's rounds leaves the busy moment out, and
how far they lie apart tells of it.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable

from ..timing import Timing, benchmark

SHORTEST = 3e-4  # seconds: what takes less is repeated, or the clock and the disturbances would be most of it
LONGEST = 0.02  # seconds: what takes longer runs in the first round only
BUSY = 0.25
"""A spread above which the machine was too busy to tell."""


class Stopwatch:
    """Times pieces of work, each under a name of its own, and keeps the seconds of every round."""

    def __init__(self) -> None:
        self._rounds: dict[Hashable, list[float]] = defaultdict(list)
        self._repeats: dict[Hashable, int] = {}

    def time(self, piece: Hashable, fn: Callable[[], object]) -> None:
        """Run `fn()` for one more round of `piece`."""
        once = benchmark(fn, runs=1, warmup=0).median
        if piece not in self._repeats:  # the first call was slow
            once = once if once > LONGEST else benchmark(fn, runs=1, warmup=0).median
            self._repeats[piece] = max(1, round(SHORTEST / once))
        repeats = self._repeats[piece]
        if once > LONGEST:
            self.add(piece, once)
        else:
            self.add(piece, benchmark(lambda: [fn() for _ in range(repeats)], runs=1, warmup=0).median / repeats)

    def add(self, piece: Hashable, seconds: float) -> None:
        """Add one more round of `piece`, measured elsewhere."""
        self._rounds[piece].append(seconds)

    def is_slow(self, piece: Hashable) -> bool:
        """Return whether `piece` has been measured and takes too long for another round."""
        return piece in self._rounds and self.seconds(piece) > LONGEST

    def seconds(self, piece: Hashable) -> float:
        """Return the median of the rounds of `piece`."""
        return statistics.median(self._rounds[piece])

    @property
    def pieces(self) -> list[Hashable]:
        """All names, in the order in which they were first measured."""
        return list(self._rounds)

    @property
    def spread(self) -> float:
        """Interquartile range / median of the rounds, of the piece in the middle."""
        spreads = [Timing(tuple(rounds)).spread for rounds in self._rounds.values() if len(rounds) > 2]
        return statistics.median(spreads) if spreads else 0.0
