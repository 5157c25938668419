"""Checks of the grid of ranks: which ranks form a group, along each dimension."""

from typing import Any

from ..base import Check, Evidence

GRIDS = (
    {"pipeline": 2, "data": 2, "tensor": 2},
    {"pipeline": 3, "data": 2, "tensor": 4},
    {"data": 4, "context": 1, "tensor": 2},
    {"data": 5},
)


def _groups(groups: Any, sizes: dict[str, int], dimension: str) -> list[list[int]]:
    """Return the groups that an answer makes, whatever kind of sequences it makes them of."""
    return [[int(rank) for rank in group] for group in groups(dict(sizes), dimension)]


def _observe(seed: int, groups: Any, _: Any) -> Evidence:
    return {f"{sizes}, {name}": _groups(groups, sizes, name) for sizes in GRIDS for name in sizes}


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
        for case, right in expected.items():
            if (mine := sorted(map(sorted, seen[case]))) != sorted(right):
                return f"{case}: {_short(mine)}; it should be {_short(right)}.{_mistake(mine, right)}"
        return None


class OrderWithinAGroup(Check):
    """Ranks of a group are in the order of their coordinate, and groups in the order of their first rank."""

    hint = "Order matters: rank i of a pipeline's group is stage i. Lowest coordinate first."

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, right in expected.items():
            mine = seen[case]
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
        return " Each rank is in one group of a dimension."
    return " Which dimension do neighboring ranks differ in? The last."


GRID = (GroupsAlongEachDimension, OrderWithinAGroup)
