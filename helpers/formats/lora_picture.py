"""A drawing of a linear layer with LoRA: what x goes through, and what is trained."""

from typing import TYPE_CHECKING

from ..core.colors import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FROZEN, _TRAINED = "#CCCCCC", COLORS[1]
# Matrices as they are multiplied: left edge, bottom, width, height, words, color.
_BOXES = (
    (0.0, 0.9, 0.9, 1.6, "x\ntokens\nx in", "white"),
    (2.2, 2.1, 2.0, 1.5, "Wᵀ\nin x out\nfrozen", _FROZEN),
    (2.0, 0.1, 0.5, 1.5, "Aᵀ\nin x r", _TRAINED),
    (3.0, 0.1, 0.5, 1.5, "x Aᵀ\ntokens\nx r", "white"),
    (3.8, 0.5, 1.7, 0.6, "Bᵀ\nr x out", _TRAINED),
    (7.2, 0.9, 1.5, 1.6, "y\ntokens\nx out", "white"),
)
_ARROWS = (
    ((0.95, 1.9), (2.15, 2.8)), ((0.95, 1.5), (1.95, 0.85)), ((2.55, 0.85), (2.95, 0.85)), ((3.55, 0.85), (3.75, 0.85)),
    ((4.25, 2.8), (6.3, 1.9)), ((5.55, 0.85), (6.3, 1.55)), ((6.6, 1.7), (7.15, 1.7)),
)  # fmt: skip


def lora_picture() -> "Figure":
    """Draw y = x Wᵀ + (α / r) (x Aᵀ) Bᵀ; sizes are not to scale, r would be a hairline."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    for left, bottom, width, height, words, color in _BOXES:
        axes.add_patch(Rectangle((left, bottom), width, height, facecolor=color, edgecolor="black", alpha=0.8))
        axes.text(left + width / 2, bottom + height / 2, words, ha="center", va="center", fontsize=8)
    for begin, end in _ARROWS:
        axes.annotate("", end, begin, arrowprops={"arrowstyle": "->"})
    axes.text(6.45, 1.7, "+", ha="center", va="center", fontsize=16)
    axes.text(5.95, 0.95, "α / r", ha="left", va="center", fontsize=9)
    axes.set(xlim=(-0.2, 9), ylim=(0, 3.8))
    legend = {"frozen: no gradient, no moments": _FROZEN, "trained": _TRAINED}
    handles = [Patch(facecolor=color, edgecolor="black", label=words) for words, color in legend.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure
