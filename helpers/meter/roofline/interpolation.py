"""Rates between those that were measured.

Small sides cost a product a share of its rate: 1 / rate is about (1 + a / m) (1 + b / n) (1 + c / k) times a constant.
So between measured shapes, 1 / rate is taken along straight lines in 1 / m, 1 / n and 1 / k, where this law is exact.
Whatever comes out is a mean of measured rates: never more than the fastest of them, and never less than the slowest.
"""

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence

Curve = Sequence[tuple[float, float]]
"""(size, rate) in ascending order of size."""
Rates = Sequence[tuple[int, int, int, float]]
"""(m, n, k, rate) in any order: the rate of products of (m, k) by (k, n)."""

_POWER = 4  # how fast a point's weight falls with its distance: enough for the nearest ones to decide


def on_curve(curve: Curve, size: float) -> float:
    """Return the rate at `size`: on the straight line between its neighbors in a log-log plot.

    Below the first size and above the last one it is theirs.
    """
    after = bisect.bisect_left(curve, size, key=lambda point: point[0])
    if after == 0:
        return curve[0][1]
    if after == len(curve):
        return curve[-1][1]
    (low, low_rate), (high, high_rate) = curve[after - 1], curve[after]
    share = math.log(size / low) / math.log(high / low)
    return low_rate ** (1 - share) * high_rate**share


def near_rates(rates: Rates, shape: tuple[int, int, int]) -> float:
    """Return the rate at `shape` = (m, n, k), from those of the eight corners of the box around it.

    A side beyond all that were measured counts as the largest of them, and likewise at the other end.
    """
    known = {(m, n, k): rate for m, n, k, rate in rates}
    ways = [_between(sorted(set(sides)), side) for sides, side in zip(zip(*known, strict=True), shape, strict=True)]
    slowness = 0.0
    for corner in itertools.product(*ways):
        weight = math.prod(share for _, share in corner)
        if weight:
            m, n, k = (side for side, _ in corner)
            slowness += weight / (known.get((m, n, k)) or _near(known, (m, n, k)))
    return 1 / slowness


def _between(sides: list[int], side: int) -> list[tuple[int, float]]:
    """Return the measured sides below and above `side`, each with its weight: linear in 1 / side."""
    after = bisect.bisect_left(sides, side)
    if after == len(sides):
        return [(sides[-1], 1.0)]
    if after == 0 or sides[after] == side:
        return [(sides[after], 1.0)]
    low, high = sides[after - 1], sides[after]
    share = (1 / side - 1 / high) / (1 / low - 1 / high)
    return [(low, share), (high, 1 - share)]


def _near(known: Mapping[tuple[int, int, int], float], corner: tuple[int, int, int]) -> float:
    """Return the rate at a corner that was not measured: the mean of all, weighted by nearness (Shepard 1968)."""
    total = weights = 0.0
    for point, rate in known.items():
        distance = sum(math.log(p / c) ** 2 for p, c in zip(point, corner, strict=True))
        weight = distance ** (-_POWER / 2)
        total += weight * math.log(rate)
        weights += weight
    return math.exp(total / weights)
