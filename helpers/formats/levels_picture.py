"""A few levels under a bell curve: where NF4 puts them, and where evenly spaced ones would lie."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.colors import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def levels_picture(scaled: Tensor, levels: dict[str, Sequence[float]]) -> "Figure":
    """Draw how often each size occurs among `scaled` weights, and below it the levels that are to stand for them.

    Args:
        scaled: (n,) weights divided by the scale of their block, from -1 to 1.
        levels: by name. Beside each stands the share of weights that its fullest level gets: of sixteen levels that are
            equally busy, each would get a sixteenth.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.add_subplot()
    counts, edges = torch.histogram(scaled.float().cpu(), bins=80, range=(-1, 1))
    axes.stairs(counts / counts.max(), edges, fill=True, color=COLORS[7], alpha=0.4)
    for row, (name, places) in enumerate(levels.items()):
        nearest = (scaled[:, None] - torch.tensor(places, device=scaled.device)).abs().argmin(1)
        most = nearest.bincount(minlength=len(places)).max().item() / len(scaled)
        axes.vlines(places, -0.22 * row - 0.22, -0.22 * row - 0.04, color=COLORS[row], lw=2)
        axes.text(1.05, -0.22 * row - 0.13, f"{name}: the fullest level gets {most:.0%}", va="center", fontsize=9)
    axes.set(
        title="Weights of a block, divided by their largest magnitude", xlabel="w / scale", xlim=(-1.05, 2), yticks=[]
    )
    axes.set_xticks([-1, -0.5, 0, 0.5, 1])
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure
