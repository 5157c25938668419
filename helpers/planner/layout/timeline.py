"""A picture of one step: what each pipeline rank does when, and what its chip waits for meanwhile.

Each rank has two rows. The upper one shows its passes, numbered by micro-batch, as papers on pipelines draw them. The
lower, thin one shows for each pass how much of it the chip waited, and for whom; the waits are drawn at its beginning,
one after the other, though they are spread over its blocks.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...core.colors import COLORS
from ...pipelines.play import BACKWARD, FOR_INPUT, FOR_WEIGHTS, FORWARD, Span
from ..config import RecipeError
from . import stage_run as runs
from .layout_plan import LayoutPlan
from .rank_memory import action_key

BUBBLE = "#e4e4e4"
PASSES = {
    FORWARD: ("forward", COLORS[0]),
    BACKWARD: ("backward", COLORS[1]),
    FOR_INPUT: ("backward: inputs' gradients", "#f5cd79"),
    FOR_WEIGHTS: ("backward: weights' gradients", COLORS[2]),
}
UPDATE = ("update", COLORS[7])
_SHARDS = ("waits for data-parallel ranks", COLORS[8])
WAITS = {  # by the part of a timing; what is not here is the chip's own work
    "launch": ("waits for its host", COLORS[6]),
    "tensor": ("waits for tensor ranks", COLORS[4]),
    "context": ("waits for context ranks", COLORS[5]),
    "expert": ("waits for expert ranks", COLORS[3]),
    **dict.fromkeys(("shard", "replicate", "data", "expert shard"), _SHARDS),
}
MANY = 3000  # bars from which on they are pixels, so that an SVG stays small
TOO_LITTLE = 0.002  # of the step: what nobody can see needs no legend
FORMATS = (".svg", ".png", ".pdf")


@dataclass(frozen=True)
class Bar:
    """A colored bar on a rank's upper or thin row, in seconds."""

    rank: int
    thin: bool
    what: str
    color: str
    begin: float
    end: float
    label: str = ""
    alpha: float = 1.0


def bars(plan: LayoutPlan) -> Iterator[Bar]:
    """Yield all bars of the picture; what they leave free is the bubble."""
    ranks = plan.layout.pipeline
    done = max([span.end for spans in plan.spans for span in spans] + plan.reduced)
    for rank, spans in enumerate(plan.spans):
        for span in spans:
            what, color = PASSES[span.action.kind]
            later_piece = span.action.stage >= ranks  # of a rank that holds several pieces of the model
            label = str(span.action.micro_batch)
            yield Bar(rank, False, what, color, span.begin, span.end, label, 0.6 if later_piece else 1.0)
            yield from _waits(rank, waited(plan, span), span.begin)
        if plan.reduced[rank] > spans[-1].end:
            yield Bar(rank, False, *_SHARDS, spans[-1].end, plan.reduced[rank])
        update: Counter[str] = Counter()
        seconds = 0.0
        for stage in range(rank, len(plan.timings), ranks):
            timing = plan.timings[stage][runs.UPDATE, ""]
            update, seconds = update + timing.parts, seconds + timing.seconds
        yield Bar(rank, False, *UPDATE, done, done + seconds)
        yield from _waits(rank, update, done)


def waited(plan: LayoutPlan, span: Span) -> Counter[str]:
    """Return the seconds of a pass by what the chip did; they add up to the span."""
    timing = plan.timings[span.action.stage][action_key(plan.layout, span.action)]
    if span.action.kind == FOR_WEIGHTS:
        return Counter({"compute": span.end - span.begin})
    halved = timing.weights if span.action.kind == FOR_INPUT else 0.0
    return timing.parts - Counter({"compute": halved})


def _waits(rank: int, parts: Counter[str], at: float) -> Iterator[Bar]:
    for part, (what, color) in WAITS.items():
        if parts[part] > 0:
            yield Bar(rank, True, what, color, at, at + parts[part])
            at += parts[part]


def draw_timeline(plan: LayoutPlan) -> Figure:
    """Draw the step: two rows for each pipeline rank."""
    took = f"{float(f'{plan.seconds:.3g}'):,g} s"
    ranks, unit, scale = plan.layout.pipeline, *(("ms", 1e3) if plan.seconds < 1 else ("s", 1.0))
    figure = Figure(figsize=(10, 1.9 + 0.5 * ranks), layout="constrained")
    axes = figure.add_subplot()
    drawn = list(bars(plan))
    for rank in range(ranks):
        axes.broken_barh([(0, plan.seconds * scale)], (rank - 0.4, 0.55), color=BUBBLE)
    rows: dict[tuple[int, bool, str, float], list[Bar]] = {}
    for bar in drawn:
        rows.setdefault((bar.rank, bar.thin, bar.color, bar.alpha), []).append(bar)
    for (rank, thin, color, alpha), row in rows.items():
        place = (rank + 0.18, 0.2) if thin else (rank - 0.4, 0.55)
        edge = {"edgecolor": "white", "linewidth": 0.0 if thin or len(drawn) > MANY else 0.4}
        pieces = [(bar.begin * scale, (bar.end - bar.begin) * scale) for bar in row]
        axes.broken_barh(pieces, place, facecolor=color, alpha=alpha, rasterized=len(drawn) > MANY, **edge)
    _number(axes, [bar for bar in drawn if bar.label], plan.seconds, scale)
    axes.set(
        title=f"{plan.layout.ranks} x {plan.cluster.gpu.name}: {plan.layout.summary}",
        xlabel=f"seconds of one step ({took})" if unit == "s" else "milliseconds of one step",
        xlim=(0, plan.seconds * scale),
        ylim=(ranks - 0.4, -0.6),
        yticks=range(ranks),
        yticklabels=[f"pipeline rank {rank}" for rank in range(ranks)] if ranks > 1 else ["each rank"],
    )
    figure.legend(handles=_handles(plan, drawn), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _handles(plan: LayoutPlan, drawn: list[Bar]) -> list[Patch]:
    """Return the legend: passes, the bubble, and those waits that can be seen."""
    seconds: Counter[tuple[bool, str, str]] = Counter()
    for bar in drawn:
        seconds[bar.thin or bar.what == _SHARDS[0], bar.what, bar.color] += bar.end - bar.begin
    ranks = plan.layout.pipeline
    least = TOO_LITTLE * plan.seconds * ranks
    passes = [(what, color) for thin, what, color in seconds if not thin]
    waits = [(what, color) for (thin, what, color), whole in seconds.items() if thin and whole >= least]
    bubble = [("bubble", BUBBLE)] if ranks > 1 else []
    return [Patch(color=color, label=what) for what, color in (*passes, *bubble, *waits)]


def _number(axes: Axes, passes: list[Bar], seconds: float, scale: float) -> None:
    """Write the numbers of micro-batches where there is room for them."""
    for bar in passes:
        if bar.end - bar.begin > 0.012 * seconds:
            middle = (bar.begin + bar.end) / 2 * scale
            axes.text(middle, bar.rank - 0.125, bar.label, ha="center", va="center", color="white", fontsize=7)


def timeline_alt(plan: LayoutPlan) -> str:
    """Say in words what the picture shows."""
    layout = plan.layout
    who = f"{layout.pipeline} pipeline ranks" if layout.pipeline > 1 else "one rank"
    passes = f"{layout.micro_batches} micro-batch" + ("es" if layout.micro_batches > 1 else "")
    waits: Counter[str] = Counter()
    for part, share in plan.parts.items():
        if part in WAITS:
            waits[WAITS[part][0].removeprefix("waits for ")] += share
    waiting = [f"{share:.0%} for {whom}" for whom, share in waits.most_common() if share >= 0.005]
    said = f"Timeline of {who} over one step of {plan.seconds:.3g} seconds: forward and backward passes of {passes}"
    said += (
        f" and the update; {plan.parts['bubble']:.0%} of the time is bubble." if layout.pipeline > 1 else ", update."
    )
    return said + (f" The chips wait {', '.join(waiting)}." if waiting else " The chips never wait.")


def write_timeline(plan: LayoutPlan, path: str) -> None:
    """Draw the step into a file; an SVG carries the words as its description.

    Raises:
        RecipeError: the name of the file is not that of a picture.
    """
    check_format(path)
    about = {"Description": timeline_alt(plan), "Date": None} if path.endswith(".svg") else {}
    draw_timeline(plan).savefig(path, metadata=about)


def check_format(path: str) -> None:
    """Make sure that `path` ends like a picture.

    Raises:
        RecipeError: it does not.
    """
    if not path.endswith(FORMATS):
        raise RecipeError(f"{path} has no picture format: its name must end in {', '.join(FORMATS)}.")
