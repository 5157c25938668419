"""What training keeps from step to step, in bytes per parameter."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from ..core.colors import COLORS
from .categories import CATEGORIES

_KEPT = ("parameters", "gradients", "optimizer state")


def static_bars(state: Mapping[str, float], weights: float = 4.0) -> Figure:
    """Draw a stacked bar for each optimizer: weights, gradients of the same size, and its state.

    Args:
        state: bytes of state a parameter, by optimizer.
        weights: bytes of a weight, and of its gradient.
    """
    figure = Figure(figsize=(8, 1.3 + 0.4 * len(state)), layout="constrained")
    axes = figure.add_subplot()
    left = [0.0] * len(state)
    for category, widths in zip(
        _KEPT, ([weights] * len(state), [weights] * len(state), [*state.values()]), strict=True
    ):
        axes.barh(list(state), widths, left=left, color=COLORS[CATEGORIES.index(category)], label=category)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.bar_label(axes.containers[-1], labels=[f"{total:.1f}" for total in left], padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set(title="What stays from step to step", xlabel="bytes per parameter")
    figure.legend(loc="outside right upper", frameon=False)
    return figure
