"""The figure of the lab on traces: a step's events as a timeline, one row for each level of nesting."""

import math
from collections import defaultdict
from typing import Any

from matplotlib.figure import Figure

from ...core.colors import COLORS

_PHASES = {"autograd::engine": "backward", "Optimizer.step": "optimizer"}  # words in a name -> the phase it begins


def time_line(events: list[dict[str, Any]], title: str, until: float = math.inf) -> Figure:
    """Draw the spans of the step's thread: an operation was called by the one above it.

    Args:
        events: a trace with an event named "step".
        title: of the figure.
        until: milliseconds of the step; later spans are left out.
    """
    step = next(e for e in events if e["name"] == "step" and e["cat"] == "user_annotation")
    mine = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (step["pid"], step["tid"])]
    end = min(step["dur"], 1e3 * until)
    around: list[tuple[float, str]] = []  # (end, phase) of the spans that are open, the innermost last
    bars: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for event in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
        start = event["ts"] - step["ts"]
        if not 0 <= start < end or event is step:
            continue
        while around and around[-1][0] <= start + 1e-2:
            around.pop()
        outer = around[-1][1] if around else "forward"
        phase = next((phase for word, phase in _PHASES.items() if word in event["name"]), outer)
        bars[phase, len(around)].append((start / 1e3, event["dur"] / 1e3))
        around.append((start + event["dur"], phase))
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.add_subplot()
    colors = dict(zip(("forward", *_PHASES.values()), COLORS, strict=False))
    for (phase, depth), spans in bars.items():
        axes.broken_barh(spans, (depth - 0.45, 0.9), color=colors[phase], edgecolor="white", lw=0.3)
    phases = dict.fromkeys(phase for phase, _ in bars)
    if len(phases) > 1:
        for phase in phases:
            axes.plot([], [], "s", color=colors[phase], label=phase)
        axes.legend(frameon=False, loc="lower right")
    deepest = max((depth for _, depth in bars), default=0)
    axes.set(title=title, xlabel="milliseconds, under the profiler", ylabel="level of nesting")
    axes.set(xlim=(0, end / 1e3), ylim=(deepest + 0.6, -0.6), yticks=range(deepest + 1))
    return figure
