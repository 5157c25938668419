"""How large the numbers of a tensor are, beside what a number format can hold."""

import numpy as np
from matplotlib.figure import Figure

from ..core.colors import COLORS


def range_ruler(
    magnitudes: np.ndarray, limits: tuple[float, float, float], title: str, span: tuple[int, int]
) -> Figure:
    """Draw a histogram of magnitudes over the range of a number format, in powers of two.

    Args:
        magnitudes: above zero.
        limits: of the format: its smallest number, its smallest normal number, its largest number.
        title: of the figure.
        span: the powers of two to show.
    """
    figure = Figure(figsize=(7.5, 3.3), layout="constrained")
    axes = figure.add_subplot()
    bottom, middle, top = np.log2(limits)
    axes.axvspan(bottom, middle, color=COLORS[1], alpha=0.2, label="subnormal")
    axes.axvspan(middle, top, color=COLORS[1], alpha=0.5, label="normal")
    percent = np.full(len(magnitudes), 100 / len(magnitudes))
    axes.hist(np.log2(magnitudes), bins=np.arange(span[0], span[1] + 1), weights=percent, color=COLORS[0])
    axes.set(title=title, xlabel="log2 of the size", ylabel="% of the numbers", xlim=span)
    figure.legend(loc="outside right upper", frameon=False)
    return figure
