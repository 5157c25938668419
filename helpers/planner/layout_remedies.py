"""What to change in a layout that does not fit: single changes that suffice, or the first few that suffice together.

Most of what can be changed is ruled out by the bytes that a layout holds at least (`search/bounds.py`), which take no
time; what is left is planned.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..core.units import human_bytes
from .catalog.clusters import Cluster
from .catalog.layout_rates import LayoutRates
from .changes import MOST, of_layout
from .config import RecipeError
from .forecast import seconds_in_words
from .grades import FITS, TIGHT
from .layout.layout import Layout
from .layout.layout_plan import LayoutPlan, plan_layout
from .search.bounds import Bounds

SAME = "the same tokens in a step"
MOST_TOGETHER = 12  # changes, one after another: each halves or doubles something
_FLAGS = {  # a layout's field -> the option that sets it to a value
    "recompute": "--activation-checkpointing",
    "recompute_every": "",  # "full" alone recomputes every block
    "micro_batch_size": "--micro-batch-size",
    "micro_batches": "--gradient-accumulation-steps",
    "tensor": "--tp",
    "pipeline": "--pp",
    "context": "--cp",
    "shard": "--dp-shard",
    "zero": "--zero-stage",
    "attention": "--attention",
    "schedule": "--schedule",
    "virtual_stages": "--virtual-stages",
}
_MORE = ("tensor", "pipeline")  # dimensions that leave less of the model on a rank


@dataclass(frozen=True)
class LayoutRemedy:
    """A layout that fits, or may, and the options that lead to it.

    Attributes:
        options: what to change in the command.
        plan: of the changed layout.
        slower: by which share the time for a token grows.
    """

    options: str
    plan: LayoutPlan
    slower: float

    def __str__(self) -> str:
        time = f"{seconds_in_words(self.plan.seconds)} per step, {self.slower:+.0%} time per token"
        return f"{human_bytes(self.plan.worst.nbytes):>10}  {self.plan.grade:<6}  {time}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values, under the names that remedies on one GPU have."""
        return {
            "change": f"{self.options}: {SAME}",
            "peak_allocated_bytes": self.plan.worst.nbytes,
            "reserved_bytes": list(self.plan.wanted),
            "fits": self.plan.fits,
            "tight": self.plan.grade == TIGHT,
            "seconds": self.plan.seconds,
            "slower": round(self.slower, 4),
        }


def layout_remedies(
    base: LayoutPlan, rates: LayoutRates | None = None, tell: Callable[[str], None] = lambda stage: None
) -> list[LayoutRemedy]:
    """Return single changes after which a layout runs, the fastest first; if there is none, several together.

    All keep the tokens of a step. The list is empty where nothing that was tried makes the layout fit.

    Args:
        base: the plan that does not fit.
        rates: by which it was planned; by default what was fitted to published runs.
        tell: called with the name of each stage as it begins.
    """
    room, bounds = base.cluster.gpu.room, Bounds(base.cluster)

    def tried(layout: Layout) -> LayoutRemedy | None:
        options = options_between(base.layout, layout)
        if options is None or bounds.nbytes(layout) > room:
            return None
        tell("trying changes")
        try:
            plan = plan_layout(layout, base.cluster, rates)
        except RecipeError:
            return None
        return LayoutRemedy(options, plan, base.tokens_per_second / plan.tokens_per_second - 1) if plan.fits else None

    single = [tried(layout) for _, layout in of_layout(base.layout, base.cluster, fits=False)]
    found = sorted(filter(None, single), key=lambda remedy: remedy.slower)
    for layout in () if found else _leaner_and_leaner(base.layout, base.cluster):
        together = tried(layout)
        found += [together] if together else []
        if together and together.plan.grade == FITS:  # after a tight one, look for more room
            break
    return found[:MOST]


def _leaner_and_leaner(layout: Layout, cluster: Cluster) -> Iterator[Layout]:
    """Yield layouts that hold less and less: each has one more change, the least trouble first."""
    for _ in range(MOST_TOGETHER):
        following = [each for _, each in of_layout(layout, cluster, fits=False) if _holds_less(each, layout)]
        if not following:
            return
        layout = following[0]
        yield layout


def _holds_less(layout: Layout, before: Layout) -> bool:
    """Return whether a change splits the model further, or leaves its split as it is."""
    return all(getattr(layout, name) >= getattr(before, name) for name in _MORE) and layout.context <= before.context


def options_between(before: Layout, after: Layout) -> str | None:
    """Return the options of `plan` that turn one layout into another; None where some field has no option.

    An option that was not given before may be added, and one that was given takes the new value.
    """
    changed = {name for name in vars(before) if getattr(before, name) != getattr(after, name)}
    if not changed <= set(_FLAGS):
        return None
    if "recompute_every" in changed:
        changed.add("recompute")
    stage = {"none": "0", "zero1": "1", "zero2": "2", "zero3": "3"}
    values = {name: getattr(after, name) for name in _FLAGS if name in changed and _FLAGS[name]}
    return " ".join(
        f"{_FLAGS[name]} {stage.get(each, each) if name == 'zero' else each}" for name, each in values.items()
    )
