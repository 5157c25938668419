"""A drawing: the steps of several layouts, on one scale of seconds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...core.colors import COLORS
from ...planner.layout.layout_plan import LayoutPlan

if TYPE_CHECKING:  # matplotlib takes most of a second to import
    from matplotlib.figure import Figure

_PARTS = ("compute", "memory", "launch", "tensor", "context", "shard", "replicate", "data", "bubble", "update")


def parts_picture(plans: Mapping[str, LayoutPlan]) -> "Figure":
    """Draw the step of each layout as a bar of its parts, all on one scale of seconds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.55 * len(plans) + 1.5), layout="constrained")
    axes = figure.add_subplot()
    left = [0.0] * len(plans)
    for number, part in enumerate(_PARTS):
        widths = [plan.parts.get(part, 0.0) * plan.seconds for plan in plans.values()]
        if max(widths) > 0.003 * max(plan.seconds for plan in plans.values()):
            color = COLORS[number % len(COLORS)]
            axes.barh(range(len(widths)), widths, left=left, color=color, label=_WORDS.get(part, part), height=0.7)
            left = [before + more for before, more in zip(left, widths, strict=True)]
    axes.set(xlabel="seconds per step, average over ranks", yticks=range(len(plans)), yticklabels=list(plans))
    axes.invert_yaxis()
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


_WORDS = {
    "memory": "passes over memory",
    "launch": "waits for the host",
    **{name: f"waits for {name} ranks" for name in ("tensor", "context", "shard", "replicate", "data")},
}
