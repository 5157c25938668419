"""The figures of the lab on data parallelism: a ring all-reduce, buckets on a timeline, a message's cost, scaling."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...core.colors import COLORS
from .all_reduce_log import AllReduceLog


def ring_figure(ranks: int = 4) -> Figure:
    """Draw each rank's chunks round by round: over how many ranks each is summed, and which one is sent next."""
    rounds = 2 * (ranks - 1)
    holds = [[1] * ranks for _ in range(ranks)]  # rank, piece -> how many ranks are in it
    figure = Figure(figsize=(8.5, 0.62 * (rounds + 1) + 0.9), layout="constrained")
    axes = figure.add_subplot()
    for step in range(rounds + 1):
        for rank in range(ranks):
            for piece in range(ranks):
                x, y, full = rank * (ranks + 1.6) + piece, step * 1.35, holds[rank][piece] == ranks
                shade = holds[rank][piece] / ranks
                leaves = step < rounds and piece == (rank - step) % ranks
                box = {"facecolor": COLORS[2] if full else COLORS[0], "alpha": 0.9 if full else 0.15 + 0.45 * shade}
                axes.add_patch(Rectangle((x, y), 0.92, 0.92, lw=0, **box))
                axes.text(x + 0.46, y + 0.48, holds[rank][piece], ha="center", va="center", fontsize=9)
                if leaves:
                    axes.add_patch(Rectangle((x, y), 0.92, 0.92, fill=False, lw=2.2, edgecolor=COLORS[4]))
        before = [list(row) for row in holds]
        for rank in range(ranks):
            piece = (rank - step - 1) % ranks  # arrives from the left
            got = before[(rank - 1) % ranks][piece]
            holds[rank][piece] = before[rank][piece] + got if step < ranks - 1 else got
    centers = [rank * (ranks + 1.6) + ranks / 2 for rank in range(ranks)]
    axes.set_xticks(centers, [f"rank {rank}" for rank in range(ranks)])
    names = ["at first"] + [f"round {n + 1}: {'add' if n < ranks - 1 else 'copy'}" for n in range(rounds)]
    axes.set_yticks([1.35 * n + 0.46 for n in range(rounds + 1)], names)
    axes.set(xlim=(-0.6, ranks * (ranks + 1.6)), ylim=(1.35 * (rounds + 1), -0.3))
    axes.set_title("Ranks summed in each chunk; framed: the chunk that goes to the right next", fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


def bucket_timeline(log: AllReduceLog) -> Figure:
    """Draw the backward pass and, below it, each bucket from the call to the arrival of its sum."""
    figure = Figure(figsize=(7, 0.9 + 0.24 * (len(log.entries) + 1)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh("backward pass", 1e3 * log.computed, color=COLORS[0])
    for index, entry in enumerate(log.entries):
        axes.barh(f"bucket {index}", 1e3 * (entry.answered - entry.asked), left=1e3 * entry.asked, color=COLORS[4])
    axes.axvline(1e3 * log.computed, color="black", lw=1, ls=":")
    axes.invert_yaxis()
    axes.set(title="Buckets are sent during the backward pass (rank 0)", xlabel="milliseconds")
    return figure


def link_figure(sweep: Sequence[tuple[int, float]], alpha: float, beta: float) -> Figure:
    """Draw measured messages and the line alpha + n / beta through them."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.add_subplot()
    sizes = [nbytes for nbytes, _ in sweep]
    axes.loglog(sizes, [1e6 * s for _, s in sweep], "o", color=COLORS[0], label="measured")
    axes.loglog(sizes, [1e6 * (alpha + n / beta) for n in sizes], "-", color=COLORS[4], label=r"$\alpha + n / \beta$")
    axes.axhline(1e6 * alpha, color="gray", lw=1, ls=":", label=r"$\alpha$")
    axes.set(title="What an all-reduce of two ranks costs", xlabel="bytes", ylabel="microseconds")
    axes.legend(frameon=False)
    return figure


def scaling_figure(speeds: Mapping[str, Sequence[float]]) -> Figure:
    """Draw speed-ups over one GPU; the n-th value of each series is that of 2**n GPUs."""
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.add_subplot()
    ranks: list[int] = []
    for (name, speed), color in zip(speeds.items(), (COLORS[4], COLORS[0]), strict=False):
        ranks = [2**i for i in range(len(speed))]
        axes.loglog(ranks, speed, "o-", base=2, color=color, label=name)
    axes.loglog(ranks, ranks, ":", base=2, color="gray", label="N times")
    axes.set(title="Model of scaling: speed-up over one GPU", xlabel="GPUs", ylabel="times")
    axes.set_xticks(ranks, [str(n) for n in ranks])
    axes.legend(frameon=False)
    return figure
