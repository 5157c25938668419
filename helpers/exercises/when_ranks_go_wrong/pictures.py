"""The picture of a slow rank: working beside waiting."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ...core.colors import COLORS


def waiting_bars(working: Sequence[float], waiting: Sequence[float]) -> Figure:
    """Draw for each rank how long a step it worked, and how long it waited in the all-reduce."""
    figure = Figure(figsize=(7, 0.8 + 0.4 * len(working)), layout="constrained")
    axes = figure.add_subplot()
    names = [f"rank {rank}" for rank in range(len(working))]
    axes.barh(names, [1e3 * s for s in working], color=COLORS[0], label="works")
    axes.barh(names, [1e3 * s for s in waiting], left=[1e3 * s for s in working], color=COLORS[1], label="all-reduce")
    axes.invert_yaxis()
    axes.set(title="A step of each rank", xlabel="milliseconds (median of the steps)")
    axes.legend(frameon=False, loc="lower right")
    return figure
