"""What a plan of a layout looks like: the memory of each pipeline rank by category, and its row of a table."""

from collections import Counter

from matplotlib.figure import Figure

from ..core.colors import COLORS
from ..core.units import GiB, human_bytes
from ..meter.categories import CATEGORIES
from ..planner.layout.layout_plan import LayoutPlan
from ..planner.search.found import Found

ORDER = (*CATEGORIES, "communication buffers")  # each has its color in every figure of the course
_COLORS = dict(zip(ORDER, (*COLORS, "#444444"), strict=True))
ROW = ("GiB", "fits", "s per step", "MFU", "GPU-h per 1e9 tokens")


def memory_bars(plan: LayoutPlan) -> Figure:
    """Draw a bar for each pipeline rank: what it holds at its fullest moment, and how much room there is."""
    whole = sum((rank.peak for rank in plan.ranks), Counter())
    categories = [*ORDER, *sorted(set(whole) - set(ORDER))]
    figure = Figure(figsize=(10, 1.5 + 0.32 * len(plan.ranks)), layout="constrained")
    axes = figure.add_subplot()
    left = [0.0] * len(plan.ranks)
    for category in categories:
        if not whole[category]:
            continue
        widths = [rank.peak[category] / GiB for rank in plan.ranks]
        axes.barh(
            range(len(widths)), widths, left=left, color=_COLORS.get(category, "#bbbbbb"), label=category, height=0.7
        )
        left = [before + width for before, width in zip(left, widths, strict=True)]
    room, most = plan.cluster.gpu.room / GiB, max(left)
    if most > room / 4:  # else the bars would be too short to see
        axes.axvline(room, color="black", linestyle="--", linewidth=1)
        axes.text(room, len(left) - 0.52, f" room {room:.1f} GiB", va="bottom", fontsize=8)
        most = max(most, room)
    axes.set(
        title=f"{plan.layout.ranks} x {plan.cluster.gpu.name}: memory at the peak of each rank (room: {room:.1f} GiB)",
        xlabel="GiB",
        xlim=(0, 1.12 * most),
        ylim=(len(left) - 0.5, -0.6),
        yticks=range(len(left)),
        yticklabels=[f"pipeline rank {n}" for n in range(len(left))] if len(left) > 1 else ["each rank"],
    )
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def memory_alt(plan: LayoutPlan) -> str:
    """Say in words what the bars show."""
    worst, room = plan.worst, plan.cluster.gpu.room
    parts = ", ".join(f"{category} {human_bytes(nbytes)}" for category, nbytes in worst.peak.most_common(4))
    fits = "fits into" if plan.fits else "does not fit into"
    who = f"the fullest of {len(plan.ranks)} pipeline ranks" if len(plan.ranks) > 1 else "each rank"
    return f"Bars of memory: {who} holds {human_bytes(worst.nbytes)}, which {fits} {human_bytes(room)}: {parts}."


def figures_of(found: Found) -> tuple[str, ...]:
    """Return the figures of a layout, as `ROW` names them."""
    fits = "yes" if found.fits else "no"
    return f"{found.nbytes / GiB:.1f}", fits, f"{found.seconds:.4g}", f"{found.mfu:.1%}", f"{found.gpu_hours:,.0f}"
