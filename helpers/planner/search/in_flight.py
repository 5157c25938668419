"""How many passes of its stages a rank has begun at once, counted in the order of its schedule."""

from functools import lru_cache
from typing import NamedTuple

from ..layout.layout import Layout
from ..layout.schedule import FOR_INPUT, FOR_WEIGHTS, FORWARD, order_of
from ..recipe import RecipeError


class InFlight(NamedTuple):
    """Passes at once, whose backward pass is not done.

    Attributes:
        most: ever.
        waiting: pairs, for moments at which a backward pass begins: passes in flight, and how many of them only wait
            for their weights' half. Of all moments those that no other exceeds in both.
        grown: the most when a backward pass begins and each stage of the rank has done one before; 0 if that never
            happens.
    """

    most: int
    waiting: tuple[tuple[int, int], ...]
    grown: int


def in_flight(layout: Layout, rank: int) -> InFlight | None:
    """Return how many passes a rank has in flight; None where the schedule refuses so many micro-batches."""
    return _count(layout.schedule, rank, layout.pipeline, layout.virtual_stages, layout.micro_batches)


@lru_cache(maxsize=4096)
def _count(schedule: str, rank: int, ranks: int, pieces: int, count: int) -> InFlight | None:
    try:
        order = order_of(schedule, rank, ranks, pieces, count)
    except RecipeError:
        return None
    now = most = grown = waiting = 0
    done: set[int] = set()
    moments: set[tuple[int, int]] = set()
    for kind, stage, _ in order:
        if kind == FORWARD:
            now += 1
            most = max(most, now)
            continue
        if len(done) == pieces:
            grown = max(grown, now)
        if kind == FOR_WEIGHTS:
            waiting -= 1
        else:
            moments.add((now, waiting))
        if kind == FOR_INPUT:
            waiting += 1
        else:
            now -= 1
            done.add(stage)
    return InFlight(most, _front(moments), grown)


def _front(moments: set[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the pairs that no other pair exceeds in both numbers."""
    front: list[tuple[int, int]] = []
    for now, waiting in sorted(moments, reverse=True):
        if not front or waiting > front[-1][1]:
            front.append((now, waiting))
    return tuple(front)
