"""Figures that several labs draw: plain data in, a matplotlib figure out.

Colours are those of Okabe and Ito, which people with colour-blindness can tell apart.
"""

import io
import sys
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from .units import MiB

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#F0E442", "#999999", "#CC79A7")


def memory_timeline(timeline: Sequence[tuple[float, Mapping[str, int]]], tenants: Sequence[str], title: str) -> Figure:
    """Draw bytes by tenant over time, stacked. `timeline` holds (seconds, bytes by tenant) in order."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    milliseconds = np.array([seconds for seconds, _ in timeline]) * 1e3
    present = [t for t in tenants if any(held[t] for _, held in timeline)]
    layers = np.array([[held[t] for _, held in timeline] for t in present]) / MiB
    colours = [COLOURS[tenants.index(t)] for t in present]
    if present:
        axes.stackplot(milliseconds, layers, labels=present, colors=colours, step="post")
    axes.set(title=title, xlabel="milliseconds", ylabel="MiB", ylim=(0, None))
    axes.margins(x=0)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)
    return figure


def tenant_bars(at_peak: Mapping[str, Mapping[str, int]], tenants: Sequence[str], title: str) -> Figure:
    """Draw one stacked bar a run. `at_peak` maps the run's name to its bytes by tenant."""
    figure = Figure(figsize=(8, 0.7 + 0.5 * len(at_peak) + 0.6), layout="constrained")
    axes = figure.add_subplot()
    names = list(at_peak)
    left = np.zeros(len(names))
    for tenant, colour in zip(tenants, COLOURS, strict=True):
        width = np.array([at_peak[name][tenant] for name in names]) / MiB
        if width.any():
            axes.barh(names, width, left=left, color=colour, label=tenant)
            left += width
    axes.invert_yaxis()
    axes.set(title=title, xlabel="MiB at the peak")
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def to_png(figure: Figure) -> bytes:
    """Render `figure` as a PNG small enough for a notebook."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80, metadata={"Software": None})  # no version: same bytes each time
    return buffer.getvalue()


def show(figure: Figure, alt: str) -> None:
    """Show `figure` in a notebook; in a plain script print `alt`, the words for those who cannot see it."""
    if in_notebook():
        from IPython.display import display

        display({"image/png": to_png(figure), "text/plain": alt}, raw=True, metadata={"image/png": {"alt": alt}})
    else:
        print(f"[figure] {alt}")


def in_notebook() -> bool:
    """Say whether this code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")  # a kernel has loaded it long ago
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
