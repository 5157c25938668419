"""The figure of a step's seconds: plain data in, a matplotlib figure out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ..core.colors import COLORS
from .phases import PHASES

if TYPE_CHECKING:
    from .step_profile import Part

# Gaps and what is unexplained are gray.
_LOOKS = {
    "matmul": COLORS[0],
    "convolution": COLORS[3],
    "attention": COLORS[4],
    "norm": COLORS[2],
    "pointwise": COLORS[1],
    "copy": COLORS[6],
    "collective": COLORS[8],
    "other": COLORS[5],
    "gap": COLORS[7],
}
_NAMES = {"gap": "gap (Python and launches)"}


def phase_bars(parts: "Sequence[Part]", unexplained: float, title: str) -> Figure:
    """Draw a bar for each phase of a step, made of kinds of operation; `unexplained` seconds get their own."""
    phases = [phase for phase in PHASES if any(part.phase == phase for part in parts)]
    rows = [*phases, "unexplained"]
    figure = Figure(figsize=(8, 0.9 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="milliseconds")
    left = dict.fromkeys(phases, 0.0)
    for kind, color in _LOOKS.items():
        widths = [1e3 * sum(p.seconds for p in parts if p.phase == phase and p.kind == kind) for phase in phases]
        if any(widths):
            label = _NAMES.get(kind, kind)
            axes.barh(phases, widths, left=list(left.values()), color=color, label=label)
            left = {phase: left[phase] + width for phase, width in zip(phases, widths, strict=True)}
    axes.barh(["unexplained"], [1e3 * unexplained], color="none", edgecolor=COLORS[7], hatch="///")
    axes.invert_yaxis()
    figure.legend(loc="outside right upper", frameon=False)
    return figure
