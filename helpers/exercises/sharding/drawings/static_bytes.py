"""Drawing: static bytes per parameter against the number of ranks, a line for each stage."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....core.colors import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORDER = (COLORS[7], COLORS[1], COLORS[2], COLORS[0])


def static_bytes_figure(held: Mapping[int, Mapping[int, float]]) -> "Figure":
    """Draw bytes per parameter, by stage (0 is DDP) and number of ranks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for (stage, by_ranks), color in zip(held.items(), ORDER, strict=True):
        label = f"ZeRO-{stage}" if stage else "DDP"
        axes.plot(list(by_ranks), list(by_ranks.values()), "o-", color=color, label=label)
    title = "Parameters, gradients and optimizer state on one rank"
    axes.set(title=title, xlabel="ranks", ylabel="bytes per parameter", ylim=(0, 18), xticks=(1, 2, 4))
    axes.legend(frameon=False)
    return figure
