"""Intervals that hold for a source that nobody has seen: conformal prediction, where sources and not runs are alike.

Runs of one source share a machine and a trainer, so they are not independent; sources are. Each source counts once,
however many runs it has, and the new one counts as one more, of which nothing is known (Dunn, Wasserman and Ramdas
2022, "pooling CDFs").
"""

import math
from collections.abc import Mapping, Sequence


def half_width(errors: Mapping[str, Sequence[float]], coverage: float) -> float:
    """Return the error within which so large a share of a new source's runs is expected.

    Args:
        errors: by source, of each run: |log(measured / forecast)|, its forecast made without the source.
        coverage: 0.9 for nine of ten.

    Raises:
        ValueError: there are too few sources to promise this much.
    """
    weighed = sorted((error, 1 / len(mine)) for mine in errors.values() for error in mine)
    wanted, total = coverage * (len(errors) + 1), 0.0
    for error, weight in weighed:
        total += weight
        if total >= wanted - 1e-9:
            return error
    raise ValueError(
        f"{len(errors)} sources promise at most {len(errors) / (len(errors) + 1):.0%} of a new one's runs."
    )


def interval(errors: Mapping[str, Sequence[float]], coverage: float = 0.9) -> tuple[float, float]:
    """Return (least, greatest) measured / forecast."""
    width = math.exp(half_width(errors, coverage))
    return 1 / width, width


def covered(errors: Mapping[str, Sequence[float]], coverage: float = 0.9) -> dict[str, float]:
    """Return, for each source, which share of its runs lies in the interval that the other sources give."""
    result = {}
    for source, mine in errors.items():
        width = half_width({name: other for name, other in errors.items() if name != source}, coverage)
        result[source] = sum(error <= width for error in mine) / len(mine)
    return result
