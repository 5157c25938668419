"""Drawing: a mesh of ranks, and the groups that communicate along its two dimensions."""

from typing import TYPE_CHECKING

from ....core.colors import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def mesh_figure(rows: int, columns: int, names: tuple[str, str]) -> "Figure":
    """Draw rows x columns ranks; `names` are those of the two dimensions. A row is one group of the second."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    figure = Figure(figsize=(5.2, 2.6), layout="constrained")
    axes = figure.add_subplot()
    box = {"boxstyle": "round,pad=0.02,rounding_size=0.15", "fill": False, "lw": 2}
    for row in range(rows):
        corner = (-0.38, row - 0.25)
        label = f'"{names[1]}": parts of one model' if row == 0 else None
        axes.add_patch(FancyBboxPatch(corner, columns - 0.24, 0.5, edgecolor=COLORS[0], label=label, **box))
    for column in range(columns):
        corner = (column - 0.25, -0.36)
        label = f'"{names[0]}": the same part' if column == 0 else None
        axes.add_patch(FancyBboxPatch(corner, 0.5, rows - 0.28, edgecolor=COLORS[1], ls="--", label=label, **box))
    for rank in range(rows * columns):
        axes.text(rank % columns, rank // columns, f"rank {rank}", ha="center", va="center")
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.set_axis_off()
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure
