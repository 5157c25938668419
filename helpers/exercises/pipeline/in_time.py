"""Check that a step takes no longer than it must."""

from collections.abc import Callable
from typing import ClassVar

from ..base import Evidence
from .lists import Case, OnLists, actions_of
from .promises import too_slow


class InTime(OnLists):
    """The step takes no longer than it must. The reference's lists show which waits are unavoidable."""

    ideal: ClassVar[Callable[[Case], float]]  # ticks

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            case = Case(*want["of"])
            if slow := too_slow(case, actions_of(seen[name]), cls.ideal(case), actions_of(want)):
                return f"{name}: {slow}"
        return None
