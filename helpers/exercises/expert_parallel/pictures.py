"""Drawings: an exchange of rows between ranks, and a mesh of ranks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.colors import COLORS
from ..mixture_of_experts.pictures import box, canvas

if TYPE_CHECKING:  # matplotlib takes most of a second to import, and ranks draw nothing
    from matplotlib.figure import Figure


def exchange_picture(rows: Sequence[Sequence[int]]) -> "Figure":
    """Draw a table of how many rows each rank sends to each other; what stays at home is gray."""
    figure, (axes,) = canvas(5, 3.4)
    n = len(rows)
    for i, line in enumerate(rows):
        for j, number in enumerate(line):
            box(axes, (j, n - 1 - i), (1, 1), "#DDDDDD" if i == j else COLORS[i % len(COLORS)])
            dark = "black" if i == j else "white"
            axes.text(j + 0.5, n - 0.5 - i, number, ha="center", va="center", color=dark, fontsize=11)
        axes.text(-0.15, n - 0.5 - i, f"from rank {i}", ha="right", va="center", color=COLORS[i % len(COLORS)])
        axes.text(i + 0.5, n + 0.12, f"to {i}", ha="center")
        axes.text(i + 0.5, -0.35, f"{sum(line[i] for line in rows)}", ha="center", weight="bold")
    axes.text(-0.15, -0.35, "rows that arrive", ha="right")
    axes.set(xlim=(-1.6, n + 0.1), ylim=(-0.6, n + 0.5))
    axes.set_axis_off()
    return figure


def mesh_picture(replicas: int, ranks: int) -> "Figure":
    """Draw ranks on a grid of replicas x expert ranks, with what they exchange in each direction."""
    figure, (axes,) = canvas(6.4, 3.2)
    for i in range(replicas):
        for j in range(ranks):
            box(axes, (3 * j, -1.6 * i), (2.2, 1), COLORS[j % len(COLORS)])
            text = f"rank {i * ranks + j}\nbatch {i * ranks + j}, experts {'ABCDEFGH'[j]}"
            axes.text(3 * j + 1.1, -1.6 * i + 0.5, text, ha="center", va="center", color="white", fontsize=9)
    arrow = {"arrowstyle": "<->", "color": "black"}
    right, low = 3 * (ranks - 1) + 2.2, -1.6 * (replicas - 1)
    axes.annotate("", (right, 1.35), (0, 1.35), arrowprops=arrow)
    axes.text(right / 2, 1.5, "expert: tokens travel", ha="center")
    axes.annotate("", (right + 0.4, low), (right + 0.4, 1), arrowprops=arrow)
    axes.text(right + 0.6, (low + 1) / 2, "replica:\nthe same experts", va="center")
    axes.set(xlim=(-0.2, right + 3), ylim=(low - 0.2, 1.9))
    axes.set_axis_off()
    return figure
