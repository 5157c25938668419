"""The instructor's policy: what a check is worth, and what a missed one still brings. A TOML file.

    [worth]                 # points of a check; the others keep theirs
    "x1.accuracy_holds" = 2

    [credit]                # share of a check's points for an answer that was tried and is wrong
    missed = 0.5            # it ran to its end
    raised = 0.25           # it raised an error

Results are stored without it, so that a policy can be changed without running anything again.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ....exercises.base import Outcome, Verdict
from ....exercises.checking import find_part
from ...build.source import Source, sources
from ..intake.exercise_notebook import checks_of
from ..judge.result import Result

_CREDIT = (Outcome.MISSED, Outcome.RAISED)  # of an answer that was tried


class PolicyError(Exception):
    """The policy cannot be used. The message says what to change."""


@dataclass(frozen=True)
class Policy:
    """Without arguments: points as the exercises say, and none for what is wrong.

    Attributes:
        worth: points by exercise and check, such as "x1.scale_grows".
        credit: share of the points by the outcome of the check: "missed" or "raised".
    """

    worth: Mapping[str, float] = field(default_factory=dict)
    credit: Mapping[str, float] = field(default_factory=dict)

    def applied(self, result: Result) -> Result:
        """Return `result` with the points of this policy."""
        if not (self.worth or self.credit):
            return result
        ran = result.status not in ("missing", "unreadable")
        return replace(result, verdicts=[self._verdict(result.exercise, v, ran) for v in result.verdicts])

    def _verdict(self, exercise: str, verdict: Verdict, ran: bool) -> Verdict:
        worth = self.worth.get(f"{exercise}.{verdict.check}", verdict.max_points)
        share = 1.0 if verdict.passed else self.credit.get(verdict.outcome, 0.0) if ran else 0.0
        return replace(verdict, points=_whole(worth * share), max_points=_whole(worth))


def _whole(points: float) -> float:
    """Return a whole number as one, and others with two digits."""
    return int(points) if points == int(points) else round(points, 2)


def read_policy(path: Path) -> Policy:
    """Read a policy.

    Raises:
        PolicyError: the file cannot be read, names something unknown, or a number is out of range.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PolicyError(f"The policy {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # TOML or UTF-8
        raise PolicyError(f"The policy {path} is not TOML: {error}.") from None
    checks = [f"{source.exercise}.{check}" for source in sources() if source.graded for check in _checks(source)]
    allowed = {"worth": (checks, 100), "credit": (_CREDIT, 1)}
    for table, entries in tables.items():
        if table not in allowed or not isinstance(entries, dict):
            raise PolicyError(f"The policy {path} has {table!r}; it may have the tables [worth] and [credit].")
        for name, value in entries.items():
            _examine(path, f"[{table}] {name}", value, name in allowed[table][0], allowed[table][1])
    return Policy(tables.get("worth", {}), tables.get("credit", {}))


def _examine(path: Path, where: str, value: Any, known: bool, most: int) -> None:
    if not known:
        raise PolicyError(f"The policy {path} has {where}, which does not exist.")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise PolicyError(f"The policy {path} has {where} = {value!r}; it must be a number from 0 to {most}.")


def _checks(source: Source) -> list[str]:
    return [check.name() for part in checks_of(source).values() for check in find_part(part).checks]
