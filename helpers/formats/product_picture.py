"""A drawing of a linear layer's three products: which matrix in which format, and along which side its blocks lie."""

from typing import TYPE_CHECKING

from ..core.colors import COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIDES = {"tokens": 1.7, "in": 1.1, "out": 2.3}  # lengths, all different, so that a transpose shows
_FORMATS = {"E4M3": COLORS[0], "E5M2": COLORS[1], "BF16": "#BBBBBB"}
_LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85}
_PRODUCTS = (  # result, left, right; each: name, its rows, its columns, its format
    (("y", "tokens", "out", "BF16"), ("x", "tokens", "in", "E4M3"), ("wᵀ", "in", "out", "E4M3")),
    (("gradient of x", "tokens", "in", "BF16"), ("g", "tokens", "out", "E5M2"), ("w", "out", "in", "E4M3")),
    (("gradient of w", "out", "in", "BF16"), ("gᵀ", "out", "tokens", "E5M2"), ("x", "tokens", "in", "E4M3")),
)


def float8_products_picture() -> "Figure":
    """Draw y = x wᵀ, the gradient of x and that of w. White lines cut the blocks that share a scale."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.6), layout="constrained")
    for axes, (result, left, right) in zip(figure.subplots(1, 3), _PRODUCTS, strict=True):
        axes.set_axis_off()
        axes.set_aspect("equal")
        axes.set_title(f"{result[0]} = {left[0]} {right[0]}\nsummed over {left[2]}", fontsize=10)
        _matrix(axes, (0, 0), left, cut="columns")
        _matrix(axes, (_SIDES[left[2]] + 0.7, 0), right, cut="rows")
        axes.set(xlim=(-0.5, 5.2), ylim=(-2.4, 0.5))
    return figure


def _matrix(axes: "Axes", corner: tuple[float, float], matrix: tuple[str, str, str, str], cut: str) -> None:
    """Draw a matrix from its upper left corner, cut along what is summed into blocks of one row or one column."""
    from matplotlib.patches import Rectangle

    (x, y), (name, rows, columns, form) = corner, matrix
    width, height = _SIDES[columns], _SIDES[rows]
    across = cut == "columns"  # blocks lie along the columns of the left, along the rows of the right
    blocks, lanes = 2, round((height if across else width) / 0.25)
    size = (width / blocks, height / lanes) if across else (width / lanes, height / blocks)
    for block in range(blocks):
        for lane in range(lanes):
            at = (block, lane) if across else (lane, block)
            place = (x + at[0] * size[0], y - (at[1] + 1) * size[1])
            axes.add_patch(Rectangle(place, *size, facecolor=_FORMATS[form], edgecolor="white", linewidth=1))
    axes.text(x + width / 2, y - height / 2, f"{name}\n{form}", ha="center", va="center", fontsize=9, bbox=_LABEL)
    axes.text(x + width / 2, y + 0.08, columns, ha="center", va="bottom", fontsize=8)
    axes.text(x - 0.08, y - height / 2, rows, ha="right", va="center", fontsize=8, rotation=90)
