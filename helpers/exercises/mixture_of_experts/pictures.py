"""Drawings: a layer of experts, and their loads over time."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...core.colors import COLORS

if TYPE_CHECKING:  # matplotlib takes most of a second to import, and ranks draw nothing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor


def canvas(width: float, height: float, panels: int = 1) -> "tuple[Figure, list[Axes]]":
    """Return an empty figure and its panels, beside each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    first = figure.add_subplot(1, panels, 1)
    return figure, [first, *(figure.add_subplot(1, panels, i + 2, sharey=first) for i in range(panels - 1))]


def box(axes: "Axes", at: tuple[float, float], size: tuple[float, float], color: str) -> None:
    """Draw a filled rectangle at its lower left corner."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle(at, *size, facecolor=color, edgecolor="white", linewidth=2, zorder=2.5))


def layer_picture() -> "Figure":
    """Draw four tokens, each on its way through two of four experts."""
    figure, (axes,) = canvas(7, 2.9)
    choices = (((0, 0.7), (2, 0.3)), ((0, 0.5), (1, 0.5)), ((2, 0.8), (0, 0.2)), ((3, 0.6), (2, 0.4)))
    for token, pair in enumerate(choices):
        y = 3 - token
        for expert, weight in pair:
            axes.plot(
                [1, 3.4, 4.6, 7], [y, 3 - expert, 3 - expert, y], color=COLORS[token], lw=1 + 5 * weight, alpha=0.6
            )
        for x, text in ((0.5, f"token {token}"), (7.5, "sum")):
            box(axes, (x - 0.5, y - 0.3), (1, 0.6), COLORS[token])
            axes.text(x, y, text, ha="center", va="center", color="white", fontsize=9)
    for expert in range(4):
        box(axes, (3.4, 3 - expert - 0.3), (1.2, 0.6), "#555555")
        axes.text(4, 3 - expert, f"expert {expert}", ha="center", va="center", color="white", fontsize=9, zorder=3)
    axes.text(2.2, 3.55, "router: k = 2", ha="center", fontsize=10)
    axes.text(5.8, 3.55, "times its weight", ha="center", fontsize=10)
    axes.set(xlim=(-0.2, 8.2), ylim=(-0.6, 3.9))
    axes.set_axis_off()
    return figure


def loads_picture(runs: "Mapping[str, Tensor]", layer: int = 0) -> "Figure":
    """Draw the experts' shares of the choices over the steps, in a panel for each run.

    Args:
        runs: by name, shares of (steps, layers, experts).
        layer: which layer.
    """
    figure, panels = canvas(3.2 * len(runs) + 1.2, 3, len(runs))
    for axes, (name, loads) in zip(panels, runs.items(), strict=True):
        shares = loads[:, layer].T.numpy()  # (experts, steps)
        colors = [COLORS[i % len(COLORS)] for i in range(len(shares))]
        axes.stackplot(range(shares.shape[1]), 100 * shares, colors=colors, edgecolor="white", linewidth=0.3)
        axes.set(title=name, xlim=(0, shares.shape[1] - 1), ylim=(0, 100))
        axes.set_xlabel(f"step ({('first', 'second')[layer]} block)")
    panels[0].set_ylabel("% of the choices, by expert")
    return figure
