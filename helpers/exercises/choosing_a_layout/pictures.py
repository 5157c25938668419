"""Drawings: a grid of ranks on its nodes, bytes that cross, and layouts by memory and time."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...core.colors import COLORS
from ...core.units import GiB

if TYPE_CHECKING:  # matplotlib takes most of a second to import, and ranks draw nothing
    from matplotlib.figure import Figure


def grid_picture(sizes: Mapping[str, int], node: int) -> "Figure":
    """Draw the ranks of a grid: a row for each coordinate but the last, neighbors side by side, nodes framed.

    Args:
        sizes: ranks in each dimension, the last of which has neighbors.
        node: ranks in a node.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    *outer, (inner, width) = sizes.items()
    total = width
    for _, size in outer:
        total *= size
    rows = total // width
    figure = Figure(figsize=(1.9 * width + 3.4, 0.62 * rows + 0.9), layout="constrained")
    axes = figure.add_subplot()
    for rank in range(total):
        row, column = divmod(rank, width)
        color = COLORS[(rank // node) % len(COLORS)]
        axes.add_patch(Rectangle((column, -row), 0.92, 0.8, facecolor=color, edgecolor="white"))
        axes.text(column + 0.46, 0.4 - row, f"rank {rank}", ha="center", va="center", color="white", fontsize=9)
    for row in range(rows):
        words, rest = [], row
        for name, size in reversed(outer):
            rest, at = divmod(rest, size)
            words.append(f"{name} {at}")
        axes.text(-0.12, 0.4 - row, ", ".join(reversed(words)), ha="right", va="center", fontsize=9)
    for column in range(width):
        axes.text(column + 0.46, 1.0, f"{inner} {column}", ha="center", fontsize=9)
    axes.set(xlim=(-1.6, width + 0.1), ylim=(0.1 - rows, 1.4), title=f"one color per node of {node} ranks")
    axes.set_axis_off()
    axes.title.set_visible(True)
    return figure


def crossing_picture(tokens: Sequence[int], sent: Mapping[str, Sequence[float]]) -> "Figure":
    """Draw the bytes that a rank sends over the tokens of a micro-batch, a line for each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for color, (name, nbytes) in zip(COLORS, sent.items(), strict=False):
        axes.plot(tokens, [n / 1e6 for n in nbytes], "o-", color=color, label=name)
    axes.set(xscale="log", yscale="log", xlabel="tokens per micro-batch", ylabel="MB sent per rank")
    axes.set_xticks(tokens, [str(n) for n in tokens])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return figure


def search_picture(
    points: Mapping[str, Sequence[tuple[float, float]]], room: float, best: tuple[float, float] | None
) -> "Figure":
    """Draw layouts as points, seconds over bytes, a color for each kind.

    Args:
        points: (bytes, seconds) of the layouts of each kind.
        room: bytes of a GPU.
        best: the point to circle, if a layout fits.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for color, (name, pairs) in zip(COLORS, points.items(), strict=False):
        axes.scatter([n / GiB for n, _ in pairs], [s for _, s in pairs], s=14, color=color, label=name)
    axes.axvline(room / GiB, color="gray", linestyle="--", label="memory of a GPU")
    if best:
        axes.scatter([best[0] / GiB], [best[1]], s=140, facecolor="none", edgecolor="black", label="the best that fits")
    axes.set(xscale="log", yscale="log", xlabel="GiB on a rank", ylabel="seconds per step")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure
