"""Drawing: what each of four ranks keeps of parameters, gradients and optimizer state, stage by stage."""

from typing import TYPE_CHECKING

from ....core.colors import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CATEGORIES = (("parameters", 4, 3), ("gradients", 4, 2), ("optimizer state", 8, 1))  # bytes each, sharded from stage


def shards_figure(ranks: int = 4) -> "Figure":
    """Draw DDP and the stages of ZeRO side by side: one row per rank, as wide as the bytes of a parameter.

    What is pale is kept by another rank.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.4), layout="constrained")
    for stage, axes in enumerate(figure.subplots(1, 4, sharey=True)):
        for rank in range(ranks):
            left = 0.0
            for (category, nbytes, sharded_from), color in zip(CATEGORIES, COLORS, strict=False):
                label = category if rank == stage == 0 else None
                axes.barh(rank, nbytes, left=left, height=0.7, color=color, alpha=0.15)
                whole = stage < sharded_from
                width = nbytes if whole else nbytes / ranks
                start = left if whole else left + rank * width
                axes.barh(rank, width, left=start, height=0.7, color=color, label=label)
                left += nbytes
        axes.set(title=f"ZeRO-{stage}" if stage else "DDP", xticks=[], yticks=range(ranks))
        axes.set_yticklabels([f"rank {rank}" for rank in range(ranks)])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
