"""The figure of a slow rank: computing beside waiting."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from ...core.colors import COLORS


def waiting_bars(working: Sequence[float], waiting: Sequence[float]) -> Figure:
    """Draw for each rank how long it computed per step, and how long it was in the all-reduce."""
    figure = Figure(figsize=(7, 1.1 + 0.4 * len(working)), layout="constrained")
    axes = figure.add_subplot()
    names = [f"rank {rank}" for rank in range(len(working))]
    axes.barh(names, [1e3 * s for s in working], color=COLORS[0], label="computing")
    axes.barh(names, [1e3 * s for s in waiting], left=[1e3 * s for s in working], color=COLORS[1], label="all-reduce")
    axes.invert_yaxis()
    axes.set(title="One step on each rank", xlabel="milliseconds (median over the steps)")
    figure.legend(frameon=False, loc="outside lower center", ncols=2)  # the bars fill the axes
    return figure
