"""Hostile and odd hand-ins, with the points and the status that each must get.

All hand in X1. Most answer only its first cell, the scaler, which is worth 3 of the 10 points: a right answer that also
does harm keeps its 3 points, a wrong one gets none however it tries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from helpers.course.grade.collect import reference_hand_in
from helpers.course.source import sources

X1 = next(source for source in sources() if source.exercise == "x1")
RIGHT = reference_hand_in(X1).answers["scaler"]
WRONG = """
class DynamicLossScaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.value = init_scale

    def scale(self, loss):
        return loss

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        return None

    def update(self):
        pass

    def get_scale(self):
        return self.value
"""


def in_method(code: str, answer: str = WRONG, method: str = "step(self, optimizer)") -> str:
    """Return `answer` with `code` run first in one of its methods: that is, while a check runs."""
    indented = "\n".join(f"        {line}" for line in code.strip().splitlines())
    head = f"    def {method}:\n"
    assert head in answer
    return answer.replace(head, f"{head}{indented}\n")


@dataclass(frozen=True)
class Attack:
    """A hand-in.

    Attributes:
        answers: the text of answer cells.
        total, status: what it must get.
        flag: words that one of its flags must have.
    """

    answers: dict[str, str]
    total: int
    status: str = "graded"
    flag: str = ""


ATTACKS: dict[str, Attack] = {}


def attack(name: str, scaler: str, total: int, status: str = "graded", flag: str = "") -> None:
    """Add an attack that answers the scaler's cell."""
    assert name not in ATTACKS, name
    ATTACKS[name] = Attack({"scaler": scaler}, total, status, flag)


from . import bombs, forgeries, patches, thefts  # noqa: E402, F401 - each adds its own

__all__ = ["ATTACKS", "RIGHT", "WRONG", "X1", "Attack", "Callable", "Path", "attack", "in_method"]
