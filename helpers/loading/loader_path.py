"""The way of a batch through `DataLoader`, as a picture."""

from matplotlib.figure import Figure

from ..core.colors import COLORS

_BOXES = (  # center, text, color
    ((1.1, 1.5), "main process:\ndraws the order", COLORS[7]),
    ((4.6, 2.5), "worker 0:\nreads, decodes, stacks", COLORS[1]),
    ((4.6, 0.5), "worker 1:\nreads, decodes, stacks", COLORS[1]),
    ((8.0, 1.5), "shared memory:\nfinished batches", COLORS[4]),
    ((10.8, 1.5), "thread: pins\n(for a GPU)", COLORS[7]),
    ((13.3, 1.5), "the loop:\ntakes in order", COLORS[2]),
)
_ARROWS = (  # from edge to edge
    ((2.1, 1.9), (3.25, 2.4)),
    ((2.1, 1.1), (3.25, 0.6)),
    ((5.95, 2.4), (7.1, 1.9)),
    ((5.95, 0.6), (7.1, 1.1)),
    ((9.0, 1.5), (9.95, 1.5)),
    ((11.65, 1.5), (12.4, 1.5)),
)


def loader_path() -> Figure:
    """Draw who hands what to whom in a `DataLoader` with two workers."""
    figure = Figure(figsize=(9, 2.1), layout="constrained")
    axes = figure.add_subplot()
    for start, end in _ARROWS:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "#555555"})
    for y, text in ((2.55, "indices of batches\n0, 2, 4, …"), (0.45, "indices of batches\n1, 3, 5, …")):
        axes.text(1.7, y, text, ha="center", va="center", fontsize=8)
    for (x, y), text, color in _BOXES:
        look = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": color, "linewidth": 2}
        axes.text(x, y, text, ha="center", va="center", fontsize=9, bbox=look)
    axes.set(xlim=(-0.2, 14.5), ylim=(-0.1, 3.1))
    axes.set_axis_off()
    return figure
