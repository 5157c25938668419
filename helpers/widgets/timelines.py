"""Timeline explorer: put a cursor on a moment of a step and read who is there, and which operation is at work."""

from collections.abc import Mapping

from matplotlib.figure import Figure

from ..core.units import MiB, human_bytes
from ..meter.count import TENANTS
from ..meter.figures import draw_timeline
from ..meter.recorder import MemoryMeter
from .explore import explore


def timelines_figure(meters: Mapping[str, MemoryMeter], upper: str, lower: str, percent: int) -> Figure:
    """Draw two of `meters`, one above the other on one scale, with a cursor after `percent` % of either."""
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    panels = figure.subplots(2, 1, sharey=True)
    named = {}
    for axes, name in zip(panels, (upper, lower), strict=True):
        moments = meters[name].timeline
        seconds = (meters[name].ended - meters[name].began) / 1e9 * percent / 100
        here = next((moment for moment in reversed(moments) if moment.seconds <= seconds), moments[0])
        draw_timeline(axes, moments, TENANTS)
        axes.axvline(1e3 * seconds, color="black", lw=1.5)
        held = sorted(here.held.items(), key=lambda item: -item[1])
        most = ", ".join(f"{tenant} {nbytes / MiB:.1f}" for tenant, nbytes in held[:3] if nbytes)
        axes.set_title(f"{name}, {human_bytes(sum(here.held.values()))} (MiB: {most})\n{here.op}", fontsize=10)
        named |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def explore_timelines(meters: Mapping[str, MemoryMeter]) -> None:
    """Show two steps, one above the other, with a cursor; it begins at the peak of the first of `meters`.

    Args:
        meters: name -> meter of a step, two or more of them.
    """
    first, second, *_ = meters
    meter = meters[first]
    peak = 100 * (meter.peak_time - meter.began) / (meter.ended - meter.began)
    explore(
        lambda upper, lower, percent_of_the_step: timelines_figure(meters, upper, lower, percent_of_the_step),
        "Memory over two training steps, tenant by tenant, with a cursor; the titles name the operation that it is on.",
        upper=(first, tuple(meters)),
        lower=(second, tuple(meters)),
        percent_of_the_step=(min(100, int(peak) + 1), range(0, 101)),
    )
