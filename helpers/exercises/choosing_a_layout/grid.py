"""Checks of the grid of ranks: which ranks form a group, along each dimension."""

from numbers import Integral
from typing import Any

from ..base import Check, Evidence

GRIDS = (
    {"pipeline": 2, "data": 2, "tensor": 2},
    {"pipeline": 3, "data": 2, "tensor": 4},
    {"data": 4, "context": 1, "tensor": 2},
    {"data": 5},
)


def _observe(seed: int, groups: Any, _: Any) -> Evidence:
    """Return the groups that an answer makes, what it makes of `sizes`, and types of ranks that are not ints."""
    made: dict[str, list[list[int]]] = {}
    left: dict[str, dict[str, int]] = {}
    types: set[str] = set()
    for sizes in GRIDS:
        for name in sizes:
            mine = dict(sizes)
            found = [list(group) for group in groups(mine, name)]  # of whatever kind of sequences
            made[f"{sizes}, {name}"] = [[int(rank) for rank in group] for group in found]
            left[f"{sizes}, {name}"] = mine
            types |= {type(rank).__name__ for group in found for rank in group if not isinstance(rank, Integral)}
    return {"groups": made, "sizes": left, "types": sorted(types)}


class GroupsAlongEachDimension(Check):
    """Ranks of a group differ in one coordinate only; in the last dimension they are neighbors."""

    hint = (
        "Write the numbers 0, 1, 2, ... into an array of shape `tuple(sizes.values())`: its indices are coordinates.\n"
        "`torch.arange(n).view(shape)`, then `movedim` moves one dimension to the end; the rows of "
        "`reshape(-1, size)` are the groups."
    )

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, right in expected["groups"].items():
            if (mine := sorted(map(sorted, seen["groups"][case]))) != sorted(right):
                return f"{case}: {_short(mine)}; it should be {_short(right)}.{_mistake(mine, right)}"
            if seen["sizes"][case] != expected["sizes"][case]:
                return f"{case}: after the call, `sizes` is {seen['sizes'][case]}. Leave the caller's dict as it is."
        if seen["types"]:
            return f"The rank numbers are of type {', '.join(seen['types'])}; they should be ints."
        return None


class OrderWithinAGroup(Check):
    """Ranks of a group are in the order of their coordinate, and groups in the order of their first rank."""

    hint = "Order matters: rank i of a pipeline's group is stage i. Lowest coordinate first."

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, right in expected["groups"].items():
            mine = seen["groups"][case]
            if sorted(map(sorted, mine)) == sorted(right) and mine != right:
                return (
                    f"{case}: the groups are right, but not their order: {_short(mine)}; it should be {_short(right)}."
                )
        return None


def _short(groups: list[list[int]]) -> str:
    return str(groups[:4])[:-1] + (", ...]" if len(groups) > 4 else "]")


def _mistake(mine: list[list[int]], right: list[list[int]]) -> str:
    size = len(right[0])
    if any(len(group) != size for group in mine):
        return f" A group has {size} rank{'s' * (size > 1)} here."
    ranks = sorted(rank for group in mine for rank in group)
    if ranks != sorted(rank for group in right for rank in group):
        return " Each rank is in exactly one group of a dimension."
    return " Which dimension do neighboring ranks differ in? The last."


GRID = (GroupsAlongEachDimension, OrderWithinAGroup)
