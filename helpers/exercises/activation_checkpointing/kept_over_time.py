"""What a forward and a backward pass keep over time, with and without checkpoints: the idea as a picture."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...core.colors import COLORS

_LOOKS = {"forward": COLORS[3], "forward again": COLORS[1], "backward": COLORS[2]}


def _passes(blocks: int, keeps: int, checkpointed: bool) -> list[tuple[str, int, int]]:
    """Return what runs in turn: kind, block, and by how many tensors the memory grows."""
    forward = [("forward", i, 1 if checkpointed else keeps) for i in range(blocks)]
    again = [("forward again", "backward"), ("backward",)][not checkpointed]
    grows = {"forward again": keeps, "backward": -keeps - checkpointed}
    return forward + [(kind, i, grows[kind]) for i in reversed(range(blocks)) for kind in again]


def _draw(axes: Axes, steps: list[tuple[str, int, int]]) -> None:
    held, most, time = 0, 0, 0
    for kind, block, more in steps:
        held += max(0, more)  # while it runs, what it makes is there, and what it uses up still is
        width = 2 if kind == "backward" else 1  # it takes about as long as two forward passes
        axes.bar(time, held, width=width, align="edge", color=_LOOKS[kind], edgecolor="white", label=kind)
        axes.text(time + width / 2, -0.8, block, ha="center", va="top", fontsize=8)
        most, held, time = max(most, held), held + min(0, more), time + width
    axes.axhline(most, color="black", linewidth=1, linestyle=":")


def kept_over_time(blocks: int = 6, keeps: int = 6) -> Figure:
    """Draw the tensors held while one block after another runs forward, then backward; below, the same checkpointed.

    Args:
        blocks: of the model.
        keeps: tensors, as large as its input, that a block keeps for its backward pass; the input is one of them.
    """
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, checkpointed in zip(panels, (False, True), strict=True):
        steps = _passes(blocks, keeps, checkpointed)
        _draw(axes, steps)
        name = (
            "Checkpointed: a block keeps only its input, then runs again"
            if checkpointed
            else "A block keeps everything"
        )
        axes.set(title=name, ylabel="tensors held", xticks=())
    panels[1].set_xlabel("time (labels are block numbers)", labelpad=14)
    legend = dict(zip(*panels[1].get_legend_handles_labels()[::-1], strict=True))
    figure.legend(legend.values(), legend.keys(), loc="outside right upper", frameon=False)
    return figure
