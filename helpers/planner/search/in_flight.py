"""How many passes of its stages a rank has begun at once, counted in the order of its schedule."""

from functools import lru_cache
from typing import NamedTuple

from ..layout import schedule as orders
from ..layout.layout import Layout
from ..layout.schedule import FOR_INPUT, FORWARD, Action
from ..recipe import RecipeError


class InFlight(NamedTuple):
    """The most passes at once, whose backward pass is not done.

    Attributes:
        most: ever.
        grown: when a backward pass begins and each stage of the rank has done one before; 0 if that never happens.
    """

    most: int
    grown: int


def in_flight(layout: Layout, rank: int) -> InFlight | None:
    """Return how many passes a rank has in flight; None where the schedule refuses so many micro-batches."""
    return _count(layout.schedule, rank, layout.pipeline, layout.virtual_stages, layout.micro_batches)


@lru_cache(maxsize=4096)
def _count(schedule: str, rank: int, ranks: int, pieces: int, count: int) -> InFlight | None:
    try:
        order = _order(schedule, rank, (ranks, pieces, count))
    except RecipeError:
        return None
    now = most = grown = 0
    done: set[int] = set()
    for kind, stage, _ in order:
        if kind == FORWARD:
            now += 1
            most = max(most, now)
            continue
        if len(done) == pieces:
            grown = max(grown, now)
        if kind != FOR_INPUT:
            now -= 1
            done.add(stage)
    return InFlight(most, grown)


def _order(schedule: str, rank: int, sizes: tuple[int, int, int]) -> list[Action]:
    ranks, pieces, count = sizes
    if schedule == "gpipe":
        return orders.gpipe(rank, count)
    if schedule == "1f1b" or ranks == 1:
        return orders.one_forward_one_backward(rank, ranks, count)
    make = orders.interleaved if schedule == "interleaved" else orders.zero_bubble
    return make(rank, ranks, pieces, count)
