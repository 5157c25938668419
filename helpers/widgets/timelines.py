"""Timeline explorer: put a cursor on a moment of a step, and read who holds memory and which operation is running."""

import math
from collections.abc import Mapping

from matplotlib.figure import Figure

from ..core.units import MiB, human_bytes
from ..meter.categories import CATEGORIES
from ..meter.figures import draw_timeline, mark_legs
from ..meter.profile import MemoryProfile
from .explore import explore


def timelines_figure(profiles: Mapping[str, MemoryProfile], upper: str, lower: str, percent: int) -> Figure:
    """Draw two of `profiles`, one above the other on one scale, with a cursor after `percent` % of either.

    The titles tell of the highest moment since one per cent before: no peak is too short for a slider of whole numbers.
    Where forward, backward and optimizer step begin is marked.
    """
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    panels = figure.subplots(2, 1, sharey=True)
    legend = {}
    for axes, name in zip(panels, (upper, lower), strict=True):
        moments = profiles[name].timeline
        seconds = (profiles[name].ended - profiles[name].began) / 1e9 * percent / 100
        hundredth = (profiles[name].ended - profiles[name].began) / 1e11
        now = next((moment for moment in reversed(moments) if moment.seconds <= seconds), moments[0])
        passed = [moment for moment in moments if seconds - hundredth < moment.seconds <= seconds]
        moment = max((now, *passed), key=lambda moment: sum(moment.held.values()))
        draw_timeline(axes, moments, CATEGORIES)
        mark_legs(axes, profiles[name].legs, moments[-1].seconds)
        axes.axvline(1e3 * seconds, color="black", lw=1.5)
        held = sorted(moment.held.items(), key=lambda item: -item[1])
        largest = ", ".join(f"{category} {nbytes / MiB:.1f}" for category, nbytes in held[:3] if nbytes)
        axes.set_title(f"{name}, {human_bytes(sum(moment.held.values()))} (MiB: {largest})\n{moment.op}", fontsize=10)
        legend |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    most = max(sum(moment.held.values()) for name in (upper, lower) for moment in profiles[name].timeline)
    panels[0].set_ylim(0, 1.15 * max(1, most) / MiB)  # of both panels
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def explore_timelines(profiles: Mapping[str, MemoryProfile]) -> None:
    """Show two steps, one above the other, with a cursor; it begins at the peak of the first of `profiles`.

    Args:
        profiles: name -> profile of a step, two or more of them.
    """
    first, second, *_ = profiles
    profile = profiles[first]
    peak = 100 * (profile.peak_time - profile.began) / (profile.ended - profile.began)
    explore(
        lambda upper, lower, percent_of_the_step: timelines_figure(profiles, upper, lower, percent_of_the_step),
        "Memory over two training steps, by category, with a cursor; the titles name the operation that it is on.",
        upper=(first, tuple(profiles)),
        lower=(second, tuple(profiles)),
        percent_of_the_step=(min(100, math.ceil(peak)), range(0, 101)),
    )
