"""The ladder as bars: how far each rung goes down, and whose bytes are left."""

from typing import TYPE_CHECKING

import numpy as np

from ...core.colors import COLORS
from ...meter.categories import CATEGORIES
from ...meter.profile import MemoryProfile

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def ladder_figure(rungs: dict[str, MemoryProfile]) -> "Figure":
    """Draw for each rung, the first one on top: the first rung's peak over its own, and its peak by category."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3), sharey=True)
    peaks = np.array([rung.peak_bytes for rung in rungs.values()])
    names, less, start = list(rungs), peaks[0] / peaks, np.zeros(len(rungs))
    left.barh(names, less, color=COLORS[0])
    left.set(title="How far the peak has fallen", xlabel="peak of rung 0 / peak", xlim=(0, 1.15 * less.max()))
    left.invert_yaxis()
    for category, color in zip(CATEGORIES, COLORS, strict=True):
        width = 100 * np.array([rung.at_peak[category] for rung in rungs.values()]) / peaks
        if width.max() >= 1:
            right.barh(names, width, left=start, color=color, label=category)
            start += width
    right.set(title="What the peak consists of", xlabel="% of that rung's peak", xlim=(0, 100))
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
