"""Checks of the grid of ranks: who is in a group with whom, along each dimension."""

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
    """Ranks of a group differ in one coordinate alone; the last dimension's are neighbours."""

    hint = (
        "Write the numbers 0, 1, 2, ... into an array of shape `tuple(sizes.values())`: its indices are coordinates.\n"
        "`torch.arange(n).view(shape)`, then `movedim` brings one dimension to the end; `reshape(-1, size)` has the "
        "groups for rows."
    )

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, right in expected.items():
            if (mine := sorted(map(sorted, seen[case]))) != sorted(right):
                return f"{case}: {_short(mine)}; {_short(right)} is right.{_mistake(mine, right)}"
        return None


class OrderWithinAGroup(Check):
    """Ranks of a group stand in the order of their coordinate, and groups in that of their first rank."""

    hint = "Stages are counted along the pipeline's group, so order matters: lowest coordinate first."

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, right in expected.items():
            mine = seen[case]
            if sorted(map(sorted, mine)) == sorted(right) and mine != right:
                return f"{case}: the groups are right, and their order is not: {_short(mine)}; {_short(right)} is."
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
    return " Which dimension do neighbouring ranks differ in? The last."


GRID = (GroupsAlongEachDimension, OrderWithinAGroup)
