"""How large the numbers of a tensor are, beside what a number format can hold."""

import numpy as np
from matplotlib.figure import Figure

from ..core.colours import COLOURS


def range_ruler(
    magnitudes: np.ndarray, smallest: float, normal: float, largest: float, title: str, span: tuple[int, int]
) -> Figure:
    """Draw how large numbers are, and over it what a number format can hold; both in powers of two.

    Args:
        magnitudes: sizes above zero.
        smallest, normal, largest: of the format: its smallest number, its smallest normal number, its largest.
        title: of the figure.
        span: the powers of two that are shown.
    """
    figure = Figure(figsize=(7.5, 3.3), layout="constrained")
    axes = figure.add_subplot()
    bottom, middle, top = np.log2([smallest, normal, largest])
    axes.axvspan(bottom, middle, color=COLOURS[1], alpha=0.2, label="subnormal")
    axes.axvspan(middle, top, color=COLOURS[1], alpha=0.5, label="normal")
    percent = np.full(len(magnitudes), 100 / len(magnitudes))
    axes.hist(np.log2(magnitudes), bins=np.arange(span[0], span[1] + 1), weights=percent, color=COLOURS[0])
    axes.set(title=title, xlabel="log2 of the size", ylabel="% of the numbers", xlim=span)
    figure.legend(loc="outside right upper", frameon=False)
    return figure
