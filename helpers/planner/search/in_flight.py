"""What the passes of a rank keep that have begun and are not done, counted in the order of its schedule."""

from functools import lru_cache
from typing import NamedTuple

from ...pipelines.play import FOR_INPUT, FOR_WEIGHTS, FORWARD
from ..config import RecipeError
from ..layout.layout import Layout
from ..layout.schedule import order_of


class InFlight(NamedTuple):
    """Bytes of the passes in flight at the fullest moment at which a backward pass begins.

    Attributes:
        most: of all such moments.
        grown: of those by which each stage of the rank has done a backward pass before; 0 if there is none.
    """

    most: float
    grown: float


def in_flight(layout: Layout, rank: int, kept: tuple[float, ...], waiting: tuple[float, ...]) -> InFlight | None:
    """Return what a rank has in flight; None where the schedule refuses so many micro-batches.

    Args:
        layout: with which schedule.
        rank: of the pipeline.
        kept: bytes of a pass until its backward pass is done, for each stage of the rank.
        waiting: bytes of gradients more, for each stage, while only the weights' half is to be done.
    """
    return _count(layout.schedule, (rank, layout.pipeline, layout.virtual_stages, layout.micro_batches), kept, waiting)


@lru_cache(maxsize=4096)
def _count(
    schedule: str, sizes: tuple[int, int, int, int], kept: tuple[float, ...], waiting: tuple[float, ...]
) -> InFlight | None:
    try:
        order = order_of(schedule, *sizes)
    except RecipeError:
        return None
    ranks = sizes[1]
    now = most = grown = 0.0
    done: set[int] = set()
    for kind, stage, _ in order:
        piece = stage // ranks
        if kind == FORWARD:
            now += kept[piece]
            continue
        if kind != FOR_WEIGHTS:
            most = max(most, now)
            if len(done) == len(kept):
                grown = max(grown, now)
        if kind == FOR_INPUT:
            now += waiting[piece]
        else:
            now -= kept[piece] + (waiting[piece] if kind == FOR_WEIGHTS else 0.0)
            done.add(stage)
    return InFlight(most, grown)
