"""The figure of a step's seconds: plain data in, a matplotlib figure out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from ..core.colours import COLOURS
from .phases import PHASES

if TYPE_CHECKING:
    from .step_profile import Part

# Gaps and what is unexplained are gray.
_LOOKS = {
    "product": COLOURS[0],
    "convolution": COLOURS[3],
    "attention": COLOURS[4],
    "norm": COLOURS[2],
    "pointwise": COLOURS[1],
    "copy": COLOURS[6],
    "collective": COLOURS[8],
    "other": COLOURS[5],
    "gap": COLOURS[7],
}


def phase_bars(parts: "Sequence[Part]", unexplained: float, title: str) -> Figure:
    """Draw a bar for each phase of a step, made of kinds of operation; `unexplained` seconds get their own."""
    phases = [phase for phase in PHASES if any(part.phase == phase for part in parts)]
    rows = [*phases, "unexplained"]
    figure = Figure(figsize=(8, 0.9 + 0.42 * len(rows)), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel="milliseconds")
    left = dict.fromkeys(phases, 0.0)
    for kind, colour in _LOOKS.items():
        widths = [1e3 * sum(p.seconds for p in parts if p.phase == phase and p.kind == kind) for phase in phases]
        if any(widths):
            label = "Python and launches" if kind == "gap" else kind
            axes.barh(phases, widths, left=list(left.values()), color=colour, label=label)
            left = {phase: left[phase] + width for phase, width in zip(phases, widths, strict=True)}
    axes.barh(["unexplained"], [1e3 * unexplained], color="none", edgecolor=COLOURS[7], hatch="///")
    axes.invert_yaxis()
    figure.legend(loc="outside right upper", frameon=False)
    return figure
