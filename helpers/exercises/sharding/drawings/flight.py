"""Drawing: when each block's parameters are requested, and when it runs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ....core.colours import COLOURS
from ..diary import Event

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GATHER = "all_gather"


def in_flight(events: Sequence[Event], block: str) -> int:
    """Return how many units are gathered or on their way, and not yet used and released, when `block` begins.

    Args:
        events: of a forward pass: all-gathers, one a unit, and a note when each unit begins.
    """
    before = events[: events.index(Event(block))]
    return sum(e.name == GATHER for e in before) - sum(not e.ranks for e in before)


def flight_figure(diaries: Mapping[str, Sequence[Event]]) -> "Figure":
    """Draw forward passes, each with a name, below each other: from a unit's gather until it begins, and its run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.9 + 1.0 * len(diaries)), layout="constrained")
    for axes, (name, events) in zip(figure.subplots(len(diaries), 1, sharex=True), diaries.items(), strict=True):
        asked = [at for at, event in enumerate(events) if event.name == GATHER]
        begun = [at for at, event in enumerate(events) if not event.ranks]
        for unit, (gather, run) in enumerate(zip(asked, begun, strict=False)):
            first = unit == 0 and axes is figure.axes[0]
            axes.barh(unit, run - gather, left=gather, color=COLOURS[3], label="requested" if first else None)
            axes.barh(unit, 1, left=run, color=COLOURS[0], label="runs" if first else None)
        axes.set(yticks=[], xticks=[], ylabel=name)
        axes.invert_yaxis()
    axes.set_xlabel("order of events in the forward pass, one row per block")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure
