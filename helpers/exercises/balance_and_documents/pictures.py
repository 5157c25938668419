"""Drawings: which rank computes which scores, and when each rank computes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.colors import COLORS
from ..context_parallel.pictures import box, new_figure

if TYPE_CHECKING:  # matplotlib takes most of a second to import, and ranks draw nothing
    from matplotlib.figure import Figure

    from .clock import ClockedRing

_BLANK = "#EEEEEE"
_KINDS = {"forward": COLORS[0], "backward": COLORS[1]}


def scores_picture(order: Sequence[Sequence[int]], title: str) -> "Figure":
    """Draw the scores, cut into chunks of rows and columns, colored by the rank that computes them.

    Args:
        order: the chunks of each rank.
        title: above the drawing; what each rank computes is written under it.
    """
    figure, axes = new_figure(4.6, 4.2)
    owner = {chunk: rank for rank, chunks in enumerate(order) for chunk in chunks}
    work = [sum(chunk + 0.5 for chunk in chunks) for chunks in order]
    for row in sorted(owner):
        for column in range(len(owner)):
            seen = column <= row
            box(axes, (column, row), COLORS[owner[row] % len(COLORS)] if seen else _BLANK)
            if column == row:  # half of it is masked
                axes.fill([column, column + 1, column + 1], [row, row, row + 1], color=_BLANK)
    idle = 1 - sum(work) / len(work) / max(work)
    axes.set_title(f"{title}: waiting {idle:.0%}", fontsize=11)
    axes.set_xlabel(
        "columns (keys), by chunk\n" + ", ".join(f"rank {r}: {w:g}" for r, w in enumerate(work)), fontsize=8
    )
    axes.set_yticks([row + 0.5 for row in owner], [f"{row}: rank {rank}" for row, rank in owner.items()], fontsize=8)
    axes.set_xticks([column + 0.5 for column in owner], [str(column) for column in owner], fontsize=8)
    axes.tick_params(length=0)
    axes.set(xlim=(0, len(owner)), ylim=(len(owner), 0), aspect="equal")
    return figure


def timeline_picture(run: "ClockedRing", title: str) -> "Figure":
    """Draw a row for each rank, and a bar for each block that it has computed."""
    figure, axes = new_figure(7.5, 1.1 + 0.4 * len(run.logs))
    begin = min(entry.start for log in run.logs for entry in log)
    for rank, log in enumerate(run.logs):
        for kind, color in _KINDS.items():
            spans = [(e.start - begin, e.end - e.start) for e in log if e.kind == kind]
            axes.broken_barh(spans, (rank - 0.4, 0.8), facecolor=color, edgecolor="white", lw=0.6)
    for kind, color in _KINDS.items():
        axes.plot([], [], "s", color=color, label=kind)
    figure.legend(loc="outside lower right", ncols=2, frameon=False, fontsize=8)
    axes.set_yticks(range(len(run.logs)), [f"rank {rank}" for rank in range(len(run.logs))])
    axes.invert_yaxis()
    axes.set(title=f"{title}: idle {run.idle:.0f}%", xlabel="seconds")
    return figure
