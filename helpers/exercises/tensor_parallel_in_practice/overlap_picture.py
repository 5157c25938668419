"""A figure of a step whose messages and matmuls are cut into chunks: a chunk is computed once it has arrived."""

from typing import TYPE_CHECKING

from ...core.colors import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def overlap_picture(computing: float, sending: float, chunks: int) -> "Figure":
    """Draw when each chunk is sent and when it is computed.

    Args:
        computing: seconds of all matmuls.
        sending: seconds of all messages.
        chunks: into how many equal parts both are cut.
    """
    from matplotlib.figure import Figure

    sent = [(i * sending / chunks, sending / chunks) for i in range(chunks)]
    computed, free = [], 0.0
    for start, lasts in sent:
        free = max(free, start + lasts)
        computed.append((free, computing / chunks))
        free += computing / chunks
    figure = Figure(figsize=(7, 2.2), layout="constrained")
    axes = figure.subplots()
    for row, (name, bars) in enumerate((("messages", sent), ("matmuls", computed))):
        in_ms = [(1000 * start, 1000 * lasts) for start, lasts in bars]
        axes.broken_barh(in_ms, (row - 0.35, 0.7), facecolors=COLORS[row], edgecolor="white", linewidth=0.8, label=name)
    axes.set_yticks((0, 1), ("messages", "matmuls"))
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    axes.set_title(f"{chunks} chunk{'s' * (chunks > 1)}: {1000 * free:.0f} ms, waiting {1 - computing / free:.0%}")
    return figure
