"""What a plan of a layout looks like: the memory of each pipeline rank by tenant, and a row of the table."""

from collections import Counter

from matplotlib.figure import Figure

from ..core.colours import COLOURS
from ..core.units import GiB, human_bytes
from ..planner.layout.layout_plan import LayoutPlan

ROW = ("GiB", "fits", "s a step", "MFU", "GPU-h per 1e9 tokens")


def memory_bars(plan: LayoutPlan) -> Figure:
    """Draw a bar for each pipeline rank: what it holds at its fullest moment, and how much room there is."""
    whole: Counter[str] = Counter()
    for rank in plan.ranks:
        whole += rank.peak
    figure = Figure(figsize=(10, 1.5 + 0.32 * len(plan.ranks)), layout="constrained")
    axes = figure.add_subplot()
    left = [0.0] * len(plan.ranks)
    for number, (tenant, _) in enumerate(whole.most_common()):
        widths = [rank.peak[tenant] / GiB for rank in plan.ranks]
        axes.barh(range(len(widths)), widths, left=left, color=COLOURS[number % len(COLOURS)], label=tenant, height=0.7)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    room = plan.cluster.gpu.room / GiB
    axes.axvline(room, color="black", linestyle="--", linewidth=1)
    axes.text(room, -0.55, f" room {room:.1f}", va="bottom", fontsize=8)
    axes.set(
        title="Memory at each rank's fullest moment",
        xlabel="GiB",
        xlim=(0, 1.1 * max(room, *left)),
        ylim=(len(left) - 0.5, -0.6),
        yticks=range(len(left)),
        yticklabels=[f"pipeline rank {n}" for n in range(len(left))] if len(left) > 1 else ["each rank"],
    )
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def memory_alt(plan: LayoutPlan) -> str:
    """Say in words what the bars show."""
    worst, room = plan.worst, plan.cluster.gpu.room
    parts = ", ".join(f"{tenant} {human_bytes(nbytes)}" for tenant, nbytes in worst.peak.most_common(4))
    fits = "fits into" if plan.fits else "does not fit into"
    return (
        f"Bars of memory: the fullest of {len(plan.ranks)} pipeline ranks holds {human_bytes(worst.nbytes)}, "
        f"which {fits} {human_bytes(room)}: {parts}."
    )


def row(plan: LayoutPlan) -> tuple[str, ...]:
    """Return the figures of a plan, as `ROW` names them."""
    hours = f"{plan.gpu_hours_per_billion_tokens:,.0f}"
    return (
        f"{plan.worst.nbytes / GiB:.1f}",
        "yes" if plan.fits else "no",
        f"{plan.seconds:.4g}",
        f"{plan.mfu:.1%}",
        hours,
    )
