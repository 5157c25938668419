"""Drawing: the parameters of a unit end to end, cut into one slice for each rank."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....core.colors import COLORS
from ..layout import shard_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def flat_vector_figure(parameters: Mapping[str, int], ranks: int) -> "Figure":
    """Draw parameters, by name with how many numbers each has, and the slices of `ranks` ranks below them."""
    from matplotlib.figure import Figure

    size = shard_size(sum(parameters.values()), ranks)
    figure = Figure(figsize=(8, 1.5), layout="constrained")
    axes = figure.add_subplot()
    left = 0
    for (name, numbers), color in zip(parameters.items(), COLORS, strict=False):
        axes.barh(1, numbers, left=left, color=color, alpha=0.5, edgecolor="white", height=0.8)
        axes.text(left + numbers / 2, 1, name, ha="center", va="center", fontsize=9)
        left += numbers
    if padding := size * ranks - left:
        axes.barh(1, padding, left=left, color="white", edgecolor="black", hatch="///", height=0.8)
        axes.annotate("padding", (left + padding / 2, 1.4), ha="center", va="bottom", fontsize=9, annotation_clip=False)
    for rank in range(ranks):
        axes.barh(0, size, left=rank * size, color="0.85", edgecolor="black", height=0.6)
        axes.text((rank + 0.5) * size, 0, f"rank {rank}: {size} numbers", ha="center", va="center", fontsize=9)
    axes.set(yticks=(0, 1), yticklabels=("shards", "flat"), xticks=[], xlim=(0, size * ranks), ylim=(-0.5, 1.8))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure
