"""What the search found out about one layout: the figures of its plan without the plan itself."""

from dataclasses import dataclass

from ..grades import grade
from ..layout.layout import Layout
from ..layout.layout_plan import RESERVED, LayoutPlan


@dataclass(frozen=True)
class Found:
    """A layout with its figures.

    Attributes:
        layout: which.
        seconds, low, high: of a step, and between which it should lie.
        nbytes, reserved: of the fullest rank: allocated, and between which its reserved memory lies.
        mfu: model FLOPs utilization.
        gpu_hours: for a billion tokens.
        parts: seconds of a step by what a rank does, or waits for.
        fits: whether the fullest rank has room.
    """

    layout: Layout
    seconds: float
    low: float
    high: float
    nbytes: int
    reserved: tuple[int, int]
    mfu: float
    gpu_hours: float
    parts: dict[str, float]
    fits: bool

    def grade(self, room: int) -> str:
        """Return "fits", "tight" or "does not fit" of a GPU with `room` bytes for the allocator."""
        return grade(self.nbytes, self.nbytes * RESERVED[self.layout.engine][1], room)


def ties_with(best: Found, other: Found, objective: str = "time") -> bool:
    """Return whether the interval of `other` reaches down to the forecast of `best`, so that `other` may be as good.

    The intervals are of seconds: where "memory" is the objective, nothing ties.
    """
    gpus = other.layout.ranks / best.layout.ranks if objective == "cost" else 1.0
    return objective != "memory" and gpus * other.low <= best.seconds


def found_of(plan: LayoutPlan) -> Found:
    """Return the figures of a plan."""
    return Found(
        layout=plan.layout,
        seconds=plan.seconds,
        low=plan.low,
        high=plan.high,
        nbytes=plan.worst.nbytes,
        reserved=plan.reserved,
        mfu=plan.mfu,
        gpu_hours=plan.gpu_hours_per_billion_tokens,
        parts={part: share * plan.seconds for part, share in plan.parts.items()},
        fits=plan.fits,
    )
