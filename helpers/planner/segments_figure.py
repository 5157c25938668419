"""Where free memory lies between blocks in use: what an allocator holds, drawn along its addresses."""

from collections.abc import Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from ..core.colors import COLORS
from ..core.units import MiB
from .allocator import Block

_LOOKS = {
    "in use": {"facecolor": COLORS[0], "edgecolor": "white"},
    "free": {"facecolor": "#DDDDDD", "edgecolor": "white"},
    "never reserved": {"facecolor": "white", "edgecolor": "#BBBBBB", "hatch": "///"},
    "wanted": {"facecolor": COLORS[1], "edgecolor": "white"},
}


def _segments(held: Sequence[Block]) -> Iterator[list[Block]]:
    """Yield the blocks of each segment that one of `held` lies in, in order of their addresses."""
    seen = set()
    for block in held:
        while block.before:
            block = block.before
        if block.address not in seen:
            seen.add(block.address)
            blocks = [block]
            while blocks[-1].after:
                blocks.append(blocks[-1].after)
            yield blocks


def segments_figure(pools: Mapping[str, Sequence[Block]], capacity: int, wanted: int) -> Figure:
    """Draw a bar for each pool, with its blocks in use and its gaps, and a bar for a request that is to fit.

    Args:
        pools: name: the blocks in use. A segment without one is not drawn.
        capacity: bytes of the GPU; what no segment covers was never reserved.
        wanted: bytes of the request.
    """
    figure = Figure(figsize=(8, 1.3 + 0.5 * len(pools)), layout="constrained")
    axes = figure.add_subplot()
    names = [*pools, "wanted"]
    legend = {}

    def bar(row: int, start: int, size: int, look: str) -> None:
        legend[look] = axes.barh(row, size / MiB, left=start / MiB, height=0.7, linewidth=1, **_LOOKS[look])

    for row, held in enumerate(pools.values()):
        start = 0
        for blocks in _segments(held):
            axes.plot([start / MiB] * 2, [row - 0.45, row + 0.45], color="black", linewidth=1.5)  # a segment begins
            for block in blocks:
                bar(row, start, block.size, "in use" if block.used else "free")
                start += block.size
        bar(row, start, capacity - start, "never reserved")
    bar(len(pools), 0, wanted, "wanted")
    axes.set(xlim=(0, capacity / MiB), xlabel="MiB (a black line: a segment begins)")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    figure.legend(legend.values(), legend.keys(), loc="outside upper center", ncols=4, frameon=False)
    return figure
