"""The pictures of the lab on checkpoints."""

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from ...core.colors import COLORS
from ...planner.goodput import goodput
from .killed_run import KilledRun


def goodput_figure(
    young: float,
    measured: Mapping[float, Sequence[float]] | None = None,
    exact: Mapping[str, float] | None = None,
) -> Figure:
    """Draw goodput by interval, and Young's interval.

    Args:
        young: his interval, in seconds.
        measured: goodputs in percent of several runs, by interval as a multiple of `young`.
        exact: save, restart and mtbf in seconds, for a curve that is computed (`planner.goodput`).
    """
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.add_subplot()
    best = 0.0
    if measured:
        minutes = [factor * young / 60 for factor in measured]
        means = [statistics.mean(shares) for shares in measured.values()]
        axes.fill_between(
            minutes, list(map(min, measured.values())), list(map(max, measured.values())), color=COLORS[0], alpha=0.2
        )
        axes.plot(minutes, means, "o-", color=COLORS[0], label="mean of the runs; shaded: from the worst to the best")
        best = max(means)
    if exact:
        factors = [2 ** (i / 8) for i in range(-40, 41)]
        shares = [100 * goodput(factor * young, **exact) for factor in factors]
        axes.plot([factor * young / 60 for factor in factors], shares, color=COLORS[0], label="computed")
        best = max(shares)
        axes.set_ylim(0, 100)
    axes.axvline(young / 60, color=COLORS[4], ls=":", label=f"Young: {young / 60:.1f} minutes")
    axes.set_xscale("log")
    axes.set(title=f"Goodput; at best {best:.1f}%", xlabel="minutes between checkpoints", ylabel="% of the time")
    axes.legend(frameon=False)
    return figure


def parts_figure(runs: Mapping[str, KilledRun]) -> Figure:
    """Draw where the seconds of each run went."""
    figure = Figure(figsize=(7, 0.9 + 0.45 * len(runs)), layout="constrained")
    axes = figure.add_subplot()
    left = [0.0] * len(runs)
    for index, part in enumerate(next(iter(runs.values())).parts):
        seconds = [run.parts[part] for run in runs.values()]
        axes.barh(list(runs), seconds, left=left, color=COLORS[(2, 4, 1, 7)[index]], label=part)
        left = [a + b for a, b in zip(left, seconds, strict=True)]
    axes.invert_yaxis()
    axes.set(title="Where the time went", xlabel="seconds")
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.35))
    return figure


def losses_figure(through: Sequence[float], left_out: Mapping[str, Sequence[float]], resumed_at: int) -> Figure:
    """Draw, in a panel for each part, the losses of a run resumed without it over those of the uninterrupted run."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True, sharey=True).flat
    for axes, (part, losses) in zip(panels, left_out.items(), strict=False):
        axes.plot(range(len(through)), through, color=COLORS[7], lw=2.5, alpha=0.6)
        axes.plot(range(resumed_at, resumed_at + len(losses)), losses, color=COLORS[4], lw=1.2)
        axes.axvline(resumed_at, color="black", lw=0.8, ls=":")
        axes.set_title(f"without {part}", fontsize=10)
    figure.supxlabel("step")
    figure.supylabel("loss")
    return figure
