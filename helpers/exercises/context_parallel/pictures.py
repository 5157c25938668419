"""Drawing of the blocks that travel around a ring."""

from typing import TYPE_CHECKING

from ...core.colors import COLORS

if TYPE_CHECKING:  # matplotlib takes most of a second to import, and ranks draw nothing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "tuple[Figure, Axes]":
    """Return a figure of that size in inches, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def box(axes: "Axes", at: tuple[float, float], color: str, text: str = "") -> None:
    """Draw a unit square at its upper left corner, with a word in it."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle(at, 1, 1, facecolor=color, edgecolor="white", linewidth=1.5))
    if text:
        axes.text(at[0] + 0.5, at[1] + 0.5, text, ha="center", va="center", color="white", fontsize=9)


def ring_picture(ranks: int) -> "Figure":
    """Draw which block of keys and values each rank has in each step: its own, then that of the rank before it."""
    figure, axes = new_figure(1.6 + 1.1 * ranks, 0.9 + 0.5 * ranks)
    for rank in range(ranks):
        for step in range(ranks):
            block = (rank - step) % ranks
            box(axes, (step * 1.5, rank), COLORS[block % len(COLORS)], f"k{block} v{block}")
            if step < ranks - 1:
                arrow = {"arrowstyle": "->", "color": "#666666", "lw": 0.9}
                axes.annotate(
                    "", (1.5 * step + 1.45, (rank + 1) % ranks + 0.5), (1.5 * step + 1.05, rank + 0.5), arrowprops=arrow
                )
    axes.set_yticks([rank + 0.5 for rank in range(ranks)], [f"rank {rank}, q{rank}" for rank in range(ranks)])
    axes.set_xticks([1.5 * step + 0.5 for step in range(ranks)], [f"step {step}" for step in range(ranks)])
    axes.set(xlim=(-0.1, 1.5 * ranks - 0.4), ylim=(ranks + 0.1, -0.1))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure
