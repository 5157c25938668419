"""Drawings: a matmul split by columns and by rows, the path through an MLP, heads on ranks, a mesh of ranks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.colors import COLORS

if TYPE_CHECKING:  # matplotlib takes most of a second to import, and ranks draw nothing
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WHOLE = "#DDDDDD"  # what every rank has


def _canvas(width: float, height: float, panels: int = 1) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(1, panels, i + 1) for i in range(panels)]
    for each in axes:
        each.set_axis_off()
        each.set_aspect("equal")
    return figure, axes


def _box(axes: "Axes", at: tuple[float, float], size: tuple[float, float], color: str) -> None:
    """Draw a filled rectangle at its lower left corner."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle(at, *size, facecolor=color, edgecolor="white", linewidth=2))


def _matrix(axes: "Axes", at: tuple[float, float], size: tuple[float, float], cut: str = "") -> None:
    """Draw a matrix at its lower left corner: full, or split by "columns" or "rows" over two ranks."""
    (x, y), (width, height) = at, size
    if not cut:
        _box(axes, at, size, _WHOLE)
        return
    across = cut == "columns"
    for rank in (0, 1):
        corner = (x + rank * width / 2, y) if across else (x, y + (1 - rank) * height / 2)
        part = (width / 2, height) if across else (width, height / 2)
        _box(axes, corner, part, COLORS[rank])
        axes.text(corner[0] + part[0] / 2, corner[1] + part[1] / 2, rank, ha="center", va="center", color="white")


def split_picture() -> "Figure":
    """Draw Y = X W over two ranks: W cut by columns, and by rows with two partial sums."""
    figure, (columns, rows) = _canvas(9, 2.6, panels=2)
    for axes, title in ((columns, "by columns"), (rows, "by rows")):
        axes.set_title(title, fontsize=11)
        for x, text in ((0.9, "X"), (2.55, "·"), (3.9, "W"), (5.5, "=")):
            axes.text(x, 2.35 if text.isalpha() else 1, text, ha="center", va="center", fontsize=12)
    _matrix(columns, (0, 0.3), (2, 1.4))
    _matrix(columns, (2.9, 0), (2, 2), "columns")
    _matrix(columns, (6, 0.3), (2, 1.4), "columns")
    columns.text(7, 2.35, "Y", ha="center", va="center", fontsize=12)
    _matrix(rows, (0, 0.3), (2, 1.4), "columns")
    _matrix(rows, (2.9, 0), (2, 2), "rows")
    for rank in (0, 1):
        x = 6 + 2.6 * rank
        _box(rows, (x, 0.3), (2, 1.4), COLORS[rank])
        rows.text(x + 1, 1, rank, ha="center", va="center", color="white")
    rows.text(8.3, 1, "+", ha="center", va="center", fontsize=12)
    rows.text(8.3, 2.35, "Y, two partial sums", ha="center", va="center", fontsize=12)
    columns.set(xlim=(-0.2, 10.8), ylim=(-0.2, 2.7))
    rows.set(xlim=(-0.2, 10.8), ylim=(-0.2, 2.7))
    return figure


def crossing_picture() -> "Figure":
    """Draw an MLP on two ranks: what Enter and Leave do in the forward and in the backward pass."""
    figure, (axes,) = _canvas(8.4, 2.7)
    for rank in (0, 1):
        for i, name in enumerate(("column", "gelu", "row")):
            _box(axes, (3.2 + 2 * i, 1.3 * (1 - rank)), (1.5, 0.9), COLORS[rank])
            axes.text(3.95 + 2 * i, 1.3 * (1 - rank) + 0.45, name, ha="center", va="center", color="white", fontsize=9)
        axes.text(
            2.95, 1.3 * (1 - rank) + 0.45, f"rank {rank}", ha="right", va="center", color=COLORS[rank], fontsize=8
        )
    for x, name, forward, backward in ((0.3, "Enter", "pass on", "sum"), (9.2, "Leave", "sum", "pass on")):
        _box(axes, (x, 0), (1.5, 2.2), _WHOLE)
        axes.text(x + 0.75, 1.1, name, ha="center", va="center", fontsize=10)
        axes.text(x + 0.75, 2.75, forward, ha="center", va="center", weight="bold" if forward == "sum" else None)
        axes.text(x + 0.75, -0.55, backward, ha="center", va="center", weight="bold" if backward == "sum" else None)
    for y, start, end, text in ((2.75, 2.3, 8.7, "forward"), (-0.55, 8.7, 2.3, "backward")):
        axes.annotate("", (end, y), (start, y), arrowprops={"arrowstyle": "->", "color": "black"})
        axes.text(5.5, y + 0.2, text, ha="center", va="bottom", fontsize=9)
    axes.set(xlim=(-0.1, 11.1), ylim=(-0.9, 3.3))
    return figure


def heads_picture(owners: Sequence[Sequence[int]], kv_heads: int) -> "Figure":
    """Draw each rank's query heads and the K/V heads that they use.

    Args:
        owners: for each rank, the K/V head of each of its query heads.
        kv_heads: how many K/V heads there are.
    """
    figure, (axes,) = _canvas(7, 2.4)
    heads = sum(map(len, owners))
    head = 0
    for rank, serving in enumerate(owners):
        color = COLORS[rank % len(COLORS)]
        axes.text(head + (len(serving) - 1) / 2, 2.75, f"rank {rank}", ha="center", color=color)
        for kv_head in serving:
            below = (kv_head + 0.5) * heads / kv_heads - 0.5
            axes.plot([head, below], [1.7, 0.7], color=color, lw=1.5)
            _box(axes, (head - 0.4, 1.7), (0.8, 0.8), color)
            axes.text(head, 2.1, head, ha="center", va="center", color="white")
            head += 1
    for kv_head in range(kv_heads):
        below = (kv_head + 0.5) * heads / kv_heads - 0.5
        _box(axes, (below - 0.4, -0.1), (0.8, 0.8), _WHOLE)
        axes.text(below, 0.3, kv_head, ha="center", va="center")
    axes.text(-0.8, 2.1, "query heads", ha="right", va="center")
    axes.text(-0.8, 0.3, "K/V heads", ha="right", va="center")
    axes.set(xlim=(-3.2, heads - 0.2), ylim=(-0.3, 3.2))
    return figure


def mesh_picture(data: int, tensor: int) -> "Figure":
    """Draw the ranks of a mesh of `data` x `tensor` on a grid, with what travels along each dimension."""
    figure, (axes,) = _canvas(6.4, 3.2)
    for i in range(data):
        for j in range(tensor):
            _box(axes, (3 * j, -1.6 * i), (2.2, 1), COLORS[j % len(COLORS)])
            words = f"rank {i * tensor + j}\nbatch {i}, half {j}" if tensor == 2 else f"rank {i * tensor + j}"
            axes.text(3 * j + 1.1, -1.6 * i + 0.5, words, ha="center", va="center", color="white", fontsize=9)
    arrow = {"arrowstyle": "<->", "color": "black"}
    right, low = 3 * (tensor - 1) + 2.2, -1.6 * (data - 1)
    axes.annotate("", (right, 1.35), (0, 1.35), arrowprops=arrow)
    axes.text(right / 2, 1.5, "tensor: activations", ha="center")
    axes.annotate("", (right + 0.4, low), (right + 0.4, 1), arrowprops=arrow)
    axes.text(right + 0.6, (low + 1) / 2, "data: parameters,\ngradients", va="center")
    axes.set(xlim=(-0.2, right + 3), ylim=(low - 0.2, 1.9))
    return figure
