"""The roofline as the figure that gave it its name."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from ...core.colors import COLORS
from .roofline import Roofline

_LOW, _HIGH = 1e-2, 1e4  # FLOP for each byte, of the axis


def roofline_figure(roofline: Roofline, measured: Mapping[str, tuple[float, float, float]] | None = None) -> Figure:
    """Draw the most FLOP/s that an operation can reach, over how many FLOPs it does with each byte that it moves.

    The slope is the memory's bandwidth, a level is what products reach, and where the two meet an operation turns from
    memory-bound to compute-bound. The dashed slope is the cache's.

    Args:
        roofline: one level for each dtype of its products.
        measured: operations to draw as dots: name -> (FLOPs, bytes, seconds), all above 0.
    """
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot(title=f"Roofline: {roofline.machine}")
    peaks = {dtype: roofline.peak(dtype) for dtype in roofline.dtypes}
    slopes = {"memory": roofline.bandwidth[-1][1], "cache": max(rate for _, rate in roofline.bandwidth)}
    for (where, slope), style in zip(slopes.items(), ("-", "--"), strict=True):
        ridge = max(peaks.values()) / slope
        label = f"{where}: {slope / 1e9:,.0f} GB/s"
        axes.plot((_LOW, ridge), (_LOW * slope / 1e9, ridge * slope / 1e9), style, color="black", label=label)
    for color, (dtype, peak) in zip(COLORS, peaks.items(), strict=False):
        begins = peak / max(slopes.values())
        axes.plot((begins, _HIGH), (peak / 1e9, peak / 1e9), color=color, label=f"{dtype}: {peak / 1e9:,.0f} GFLOP/s")
    for i, (name, (flops, nbytes, seconds)) in enumerate((measured or {}).items()):
        axes.plot(flops / nbytes, flops / seconds / 1e9, "o", color=COLORS[-1 - i % len(COLORS)], label=name)
    axes.set(xscale="log", yscale="log", xlabel="FLOP for each byte moved", ylabel="GFLOP/s")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure
