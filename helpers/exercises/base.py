"""What a check is made of.

A check has two halves that never meet. The **probe** runs the learner's code on inputs drawn from a seed and
measures what happens: the evidence, plain numbers and names. The **judge** compares that evidence with the evidence
of the reference answer, probed with the same seed, and says what is wrong or says nothing. What is right, and every
sentence of a diagnosis, is the judge's alone.

Checks of one part that ask different things of the same run share their probe: one observation, a judge for each
clause. They inherit it, or name the same function, and it runs once for all of them.

In a notebook both halves run side by side. In grading the probe runs in the learner's kernel and the judge
outside of it, where no submission can reach; that is why evidence must survive JSON.
"""

import importlib.util
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Evidence = dict[str, Any]


class Check(ABC):
    """One thing that must hold. The first line of the docstring says which, in the learner's words.

    Attributes:
        hint: what helps when it does not hold, a line a hint: from where to look to nearly there.
        compared: the judge looks at the reference's evidence. If not, the reference is not probed.
        after: checks of the same part, by name: in practice, this one is not judged while one of them fails.
        stage: where the probe runs in stages and returns an entry for each, as `probing.stages` does, the one to judge.
    """

    points: int = 0
    hint: str = ""
    compared: bool = True
    after: tuple[str, ...] = ()
    stage: str = ""

    @classmethod
    def name(cls) -> str:
        """Return the name in reports: `ScaleGrows` is reported as scale_grows."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @classmethod
    def rule(cls) -> str:
        """Return what must hold, in one line."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    @staticmethod
    @abstractmethod
    def probe(seed: int, *answers: Any) -> Evidence:
        """Run the learner's `answers` on inputs drawn from `seed`; return what was measured."""

    @staticmethod
    @abstractmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        """Return None when `seen` is right, else one or two sentences that say what to look at."""


@dataclass(frozen=True)
class Part:
    """The checks of one answer cell.

    Args:
        name: exercise and part, e.g. "x1.scaler".
        answers: the names that the answer cells define and the checks take, in order.
        checks: in the order in which they are reported.
        needs: an optional package; where it is not installed, nothing is checked. Not for graded parts.
    """

    name: str
    answers: tuple[str, ...]
    checks: tuple[type[Check], ...]
    needs: str = ""

    @property
    def missing(self) -> bool:
        """Whether what the checks need is not installed."""
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None

    @property
    def points(self) -> int:
        """Points of all checks together."""
        return sum(check.points for check in self.checks)


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    MISSED = "missed"  # the answer ran to its end, and the judge found something wrong
    RAISED = "raised"
    NOT_ATTEMPTED = "not attempted"
    TIMED_OUT = "timed out"
    NOT_RUN = "not run"  # something before the check failed, or its evidence is not what a probe writes


@dataclass(frozen=True)
class Verdict:
    """What a check concluded about an answer.

    Attributes:
        diagnosis: what was seen and what to look at; None where the check passed.
    """

    check: str
    rule: str
    points: float
    max_points: float
    outcome: Outcome
    diagnosis: str | None
    hint: str

    @property
    def passed(self) -> bool:
        """Whether the check found nothing wrong."""
        return self.outcome is Outcome.PASSED
