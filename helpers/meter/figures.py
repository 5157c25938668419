"""Figures of memory: plain data in, a matplotlib figure out."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..core.colors import COLORS
from ..core.units import MiB

_MOST_LEGS = 16  # more lines would hide the picture


def memory_timeline(
    timeline: Sequence[tuple[float, Mapping[str, int], object]],
    categories: Sequence[str],
    title: str,
    legs: Sequence[tuple[float, str]] = (),
) -> Figure:
    """Draw bytes by category over time, stacked.

    Args:
        timeline: (seconds, bytes by category, operation) in order.
        categories: gives each category its place and its color.
        title: of the figure.
        legs: (seconds, name) at which forward, backward and optimizer step begin: marked where there are a few.
    """
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot(title=title)
    draw_timeline(axes, timeline, categories)
    mark_legs(axes, legs, timeline[-1][0] if timeline else 0.0)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False)
    return figure


def mark_legs(axes: Axes, legs: Sequence[tuple[float, str]], seconds: float) -> None:
    """Draw a line where each leg begins, and its name where there is room for it; too many are not marked at all."""
    if not (seconds and 1 < len(legs) <= _MOST_LEGS):
        return
    axes.set_ylim(0, 1.12 * axes.get_ylim()[1])
    ends = [when for when, _ in legs[1:]] + [seconds]
    for (when, name), end in zip(legs, ends, strict=True):
        axes.axvline(1e3 * when, color="black", lw=0.6, ls=":")
        needs = 0.0105 * len(name) * seconds
        if end - when > needs:
            side, place = "left", (3, 0.93)
        elif end == seconds and when - legs[-2][0] > needs + 0.0105 * len(legs[-2][1]) * seconds:
            side, place = "right", (-3, 0.86)  # the last leg: its name before the line, below the others
            name = f"{name} →"
        else:
            continue
        at, style = (1e3 * when, place[1]), {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(name, at, xytext=(place[0], 0), ha=side, fontsize=8, **style)


def draw_timeline(
    axes: Axes, timeline: Sequence[tuple[float, Mapping[str, int], object]], categories: Sequence[str]
) -> None:
    """Draw bytes by category over time into `axes`."""
    milliseconds = np.array([seconds for seconds, _, _ in timeline]) * 1e3
    present = [t for t in categories if any(held[t] for _, held, _ in timeline)]
    layers = np.array([[held[t] for _, held, _ in timeline] for t in present]) / MiB
    colors = [COLORS[categories.index(t)] for t in present]
    if present:
        axes.stackplot(milliseconds, layers, labels=present, colors=colors, step="post")
    axes.set(xlabel="milliseconds", ylabel="MiB", ylim=(0, None))
    axes.margins(x=0)


def memory_blocks(
    blocks: Sequence[tuple[float, float, int, str]], categories: Sequence[str], seconds: float, title: str, most: int
) -> Figure:
    """Draw stretches of memory one by one, stacked in order of birth; those above one that ends move down.

    Args:
        blocks: (start, end, bytes, category), times in seconds.
        categories: gives each category its color.
        seconds: how long the block took.
        title: of the figure.
        most: how many blocks to draw; the smaller ones are left out.
    """
    chosen = sorted(sorted(blocks, key=lambda block: -block[2])[:most], key=lambda block: block[0])
    events = sorted([(b[0], 1, i) for i, b in enumerate(chosen)] + [(b[1], 0, i) for i, b in enumerate(chosen)])
    standing: list[int] = []
    corners: dict[int, list[tuple[float, int]]] = {}  # block -> (time, height of its lower edge)
    for when, begins, i in events:
        if begins:
            corners[i] = [(max(when, 0.0), sum(chosen[j][2] for j in standing))]
            standing.append(i)
        elif i in standing:
            at = standing.index(i)
            corners[i].append((when, corners[i][-1][1]))
            standing.pop(at)
            for j in standing[at:]:
                height = corners[j][-1][1]
                corners[j] += [(max(when, 0.0), height), (max(when, 0.0), height - chosen[i][2])]
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    named: set[str] = set()
    for i, points in corners.items():
        times = 1e3 * np.array([min(when, seconds) for when, _ in points])
        low = np.array([height for _, height in points]) / MiB
        category = chosen[i][3]
        label = None if category in named else category
        named.add(category)
        color = COLORS[categories.index(category)]
        axes.fill_between(times, low, low + chosen[i][2] / MiB, color=color, label=label, edgecolor="white", lw=0.3)
    axes.set(title=title, xlabel="milliseconds", ylabel="MiB", ylim=(0, None))
    axes.margins(x=0)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def category_bars(at_peak: Mapping[str, Mapping[str, int]], categories: Sequence[str], title: str) -> Figure:
    """Draw one stacked bar a run. `at_peak` maps the run's name to its bytes by category."""
    figure = Figure(figsize=(8, 0.7 + 0.5 * len(at_peak) + 0.6), layout="constrained")
    axes = figure.add_subplot()
    names = list(at_peak)
    left = np.zeros(len(names))
    for category, color in zip(categories, COLORS, strict=True):
        width = np.array([at_peak[name][category] for name in names]) / MiB
        if width.any():
            axes.barh(names, width, left=left, color=color, label=category)
            left += width
    axes.invert_yaxis()
    axes.set(title=title, xlabel="MiB at the peak")
    figure.legend(loc="outside right upper", frameon=False)
    return figure
