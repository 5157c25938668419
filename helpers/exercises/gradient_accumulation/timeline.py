"""A picture of one accumulated step: what runs when, what lives how long, when the weights move."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...core.colors import COLORS

_FORWARD, _BACKWARD, _STEP = 1.0, 2.0, 1.5  # lengths, about in proportion to the arithmetic
_LIGHT = (COLORS[1], COLORS[3])  # black letters on these


def accumulation_timeline(pieces: int) -> Figure:
    """Draw `pieces` micro-batches and the step after them: passes, activations, gradients and weights in four rows."""
    figure = Figure(figsize=(8, 2.8), layout="constrained")
    axes = figure.add_subplot(title=f"One step in {pieces} micro-batches")
    each = _FORWARD + _BACKWARD
    end = pieces * each
    for piece in range(pieces):
        start = piece * each
        turn, after = start + _FORWARD, start + each
        _bar(axes, 3, (start, turn), COLORS[3], f"F{piece + 1}")
        _bar(axes, 3, (turn, after), COLORS[1], f"B{piece + 1}")
        axes.fill([start, turn, after], [1.65, 2.3, 1.65], color=COLORS[2])
        # The sum grows layer by layer, and is complete when the backward pass ends.
        sum_of = "of 1" if piece == 0 else f"sum of 1–{piece + 1}"
        _bar(axes, 1, (after, after + each if piece < pieces - 1 else end + _STEP), COLORS[4], sum_of)
    axes.fill([_FORWARD, each, each], [0.7, 0.7, 1.3], color=COLORS[4], alpha=0.5, lw=0)
    _bar(axes, 3, (end, end + _STEP), COLORS[5], "step")
    _bar(axes, 0, (0, end), COLORS[0], "old")
    _bar(axes, 0, (end, end + _STEP), COLORS[5], "new")
    axes.set_yticks([3, 2, 1, 0], ["passes", "activations", ".grad", "weights"])
    axes.set(xlim=(0, end + _STEP), ylim=(-0.5, 3.5), xticks=[], xlabel="time")
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return figure


def _bar(axes: Axes, row: int, span: tuple[float, float], color: str, text: str) -> None:
    axes.barh(row, span[1] - span[0], left=span[0], height=0.6, color=color, edgecolor="white")
    axes.text(
        sum(span) / 2, row, text, ha="center", va="center", color="black" if color in _LIGHT else "white", fontsize=9
    )
