"""The largest micro-batch that a GPU has room for.

Bytes grow about in proportion to the micro-batch. So two shallow copies of the model (`shallow.py`) give a first guess;
plans of the whole step decide, by the rule of every other verdict (`grades.py`), and each gives a closer guess.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .config import MOST, TrainingConfig
from .grades import FITS

if TYPE_CHECKING:
    from .plan import Plan

MOST_PLANS = 4  # of the whole step


@dataclass(frozen=True)
class Largest:
    """The answer.

    Attributes:
        size: sequences or images in the largest micro-batch that fits; 0 if not even one does.
        grade: of one sequence or image more.
        exact: whether both were planned; else `size` fits, and a larger micro-batch might.
    """

    size: int
    grade: str
    exact: bool

    def __str__(self) -> str:
        if not self.size:
            return f"largest micro-batch that fits: none; 1 {self._verdict}"
        more = f"{self.size + 1:,} {self._verdict}" if self.exact else "a larger one might"
        return f"largest micro-batch that fits: {self.size:,}; {more}"

    @property
    def _verdict(self) -> str:
        return "is tight" if self.grade == "tight" else "does not fit"


def largest_micro_batch(
    first: "Plan", plan_one: Callable[[TrainingConfig], "Plan"], room: int, tell: Callable[[str], None]
) -> Largest:
    """Return the largest micro-batch that fits, all else being as in the recipe of `first`.

    Args:
        first: the plan of the recipe.
        plan_one: plans a changed recipe on the same GPU.
        room: bytes that the GPU has for the allocator.
        tell: called with the name of each stage as it begins.
    """
    plans = {first.recipe.micro_batch_size: first}
    low, high = 0, MOST + 1  # the largest size known to fit, and the smallest known not to
    for size, plan in plans.items():
        low, high = _bounds(size, plan, low, high)
    while high - low > 1 and len(plans) <= MOST_PLANS:
        less = max(1, high // 100) if high in plans else 1  # of large sizes, one step less would be many plans
        size = max(low + 1, min(high - less, _guess(plans, room)))
        tell(f"trying a micro-batch of {size:,}")
        plans[size] = plan_one(replace(first.recipe, micro_batch_size=size))
        low, high = _bounds(size, plans[size], low, high)
    return Largest(low, _grade(plans[high]) if high in plans else "", high - low == 1)


def _bounds(size: int, plan: "Plan", low: int, high: int) -> tuple[int, int]:
    return (max(low, size), high) if _grade(plan) == FITS else (low, min(high, size))


def _grade(plan: "Plan") -> str:
    return next(iter(plan.grades.values()))


def _guess(plans: dict[int, "Plan"], room: int) -> int:
    """Return about which micro-batch fills the room: where the line through two sizes meets it."""
    reserved = {size: plan.reserved_bytes[1] for size, plan in plans.items()}
    one = min(reserved, key=lambda size: abs(reserved[size] - room))
    if len(reserved) == 1:
        from .shallow import estimate

        plan, other = plans[one], max(1, one // 2) if reserved[one] > room else 2 * one
        if other == one:
            return 0
        allocated = estimate(replace(plan.recipe, micro_batch_size=other)).allocated
        reserved[other] = int(allocated * reserved[one] / plan.peak_allocated_bytes)
    other = max(reserved, key=lambda size: abs(size - one))  # far apart: between neighbors the allocator's steps decide
    each = max(1.0, (reserved[other] - reserved[one]) / (other - one))
    return int(one + (room - reserved[one]) / each)
