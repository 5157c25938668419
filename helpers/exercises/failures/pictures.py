"""The pictures of the lab on failures: what each rank did, and what a loss spike leaves."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ...core.colors import COLORS
from .rank_log import RankLog


def rank_lanes(logs: Sequence[RankLog]) -> Figure:
    """Draw a lane for each rank: its waits in collectives, and a cross where a call never returned."""
    figure = Figure(figsize=(8, 1.2 + 0.35 * len(logs)), layout="constrained")
    axes = figure.add_subplot()
    for rank, log in enumerate(logs):
        waits = [(call.asked, call.answered - call.asked) for call in log.calls if call.answered is not None]
        lost = [call.asked for call in log.calls if call.answered is None]
        labels = (None, None) if rank else ("waits in a collective", "never answered")
        axes.broken_barh(waits, (rank - 0.35, 0.7), color=COLORS[0], label=labels[0])
        axes.plot(lost, [rank] * len(lost), "x", color=COLORS[4], label=labels[1])
    axes.set_yticks(range(len(logs)), [f"rank {rank}, exit {log.exit_code}" for rank, log in enumerate(logs)])
    axes.invert_yaxis()
    same = all(len(set(step)) == 1 for step in zip(*(log.checksums for log in logs), strict=False))
    axes.set(title=f"Checksums {'agree' if same else 'differ'} among the ranks", xlabel="seconds")
    axes.legend(frameon=False, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.3))
    return figure


def spike_figure(curves: Mapping[str, Sequence[float]], spike_at: int) -> Figure:
    """Draw the test loss after each reaction to a spike."""
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for (name, losses), color in zip(curves.items(), (COLORS[4], COLORS[1], COLORS[0], COLORS[2]), strict=False):
        axes.semilogy(losses, color=color, label=name)
    axes.axvline(spike_at, color="black", lw=0.8, ls=":")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set(title="Test loss; the bad batches begin at the dotted line", xlabel="step", ylabel="loss")
    axes.legend(frameon=False)
    return figure
