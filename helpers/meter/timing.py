"""How long a piece of code takes, measured honestly.

Three things make naive timings wrong. The first calls are slow (memory is mapped, kernels are chosen), so warm up. A
GPU works through a queue, and a clock that stops too early has measured only the queueing, so synchronize. And a
machine has other things to do, so take the median of several runs, show the spread, and compare two things by running
them alternately, so that both meet the same disturbances.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..core.device import pick_device, synchronize


@dataclass(frozen=True)
class Timing:
    """Seconds a call took, over several runs."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median seconds a call."""
        return statistics.median(self.runs)

    @property
    def spread(self) -> float:
        """Interquartile range as a share of the median: at 0.1, the middle half of the runs spans 10 % of it."""
        if len(self.runs) < 3:
            return 0.0
        low, _, high = statistics.quantiles(self.runs, n=4)
        return (high - low) / self.median

    def __str__(self) -> str:
        return f"{self.median * 1e3:.2f} ms (spread {self.spread:.0%}, {len(self.runs)} runs)"


def once(fn: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call of `fn()`, with the work that it queued on `device`."""
    synchronize(device)
    start = time.perf_counter()
    fn()
    synchronize(device)
    return time.perf_counter() - start


def benchmark(fn: Callable[[], object], runs: int = 10, warmup: int = 2) -> Timing:
    """Time `fn()`: `warmup` calls that do not count, then `runs` calls that do."""
    device = pick_device()
    for _ in range(warmup):
        fn()
    return Timing(tuple(once(fn, device) for _ in range(runs)))


@dataclass(frozen=True)
class Comparison:
    """Two timings taken alternately. If `speedup` is above 1, the second is faster.

    Unless the middle half of the pairs, which is printed beside it, lies on both sides of 1: then the machine was too
    busy, or the difference is too small, to tell which one is faster.
    """

    before: Timing
    after: Timing

    @property
    def ratios(self) -> list[float]:
        """Seconds before / seconds after, of each pair."""
        return [before / after for before, after in zip(self.before.runs, self.after.runs, strict=True)]

    @property
    def speedup(self) -> float:
        """Median of the ratios."""
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        before, after = self.before.median, self.after.median
        text = f"{before * 1e3:.2f} ms -> {after * 1e3:.2f} ms: {self.speedup:.2f}x"
        if (before - after) * (self.speedup - 1) < 0:  # the medians say one thing, the pairs another
            text = f"{before * 1e3:.2f} ms -> {after * 1e3:.2f} ms, too close to tell: median pair {self.speedup:.2f}x"
        if len(self.ratios) < 3:
            return text
        low, _, high = statistics.quantiles(self.ratios, n=4)
        return f"{text} (middle half of the pairs: {low:.2f} to {high:.2f})"


def compare(before: Callable[[], object], after: Callable[[], object], runs: int = 10, warmup: int = 2) -> Comparison:
    """Time two functions alternately, a pair a run, so that a temporary slowdown affects both alike."""
    device = pick_device()
    for _ in range(warmup):
        before()
        after()
    pairs = [(once(before, device), once(after, device)) for _ in range(runs)]
    first, second = zip(*pairs, strict=True)
    return Comparison(Timing(first), Timing(second))
