"""The log of regrading: for each exercise that was graded again or resubmitted, its points before and after."""

from datetime import datetime
from pathlib import Path

from ..judge.result import Result
from ..store.conditions import Conditions
from .sheet import sheet

_HEADER = ("when", "student", "exercise", "points before", "points now", "status before", "status now", "checks")


def add_to_history(path: Path, before: Result, now: Result, conditions: Conditions) -> None:
    """Append a row to the CSV file `path`. It is never written anew, so what has happened stays."""
    passed = {v.check: v.passed for v in before.verdicts}
    changed = [
        f"{v.check} {'passed' if v.passed else 'missed'}" for v in now.verdicts if passed.get(v.check) != v.passed
    ]
    when = datetime.now().astimezone().isoformat(timespec="seconds")
    why = "graded again" if before.answers == now.answers else "resubmitted"
    points = (before.total, now.total, before.status, now.status)
    under = (conditions.seed, conditions.course)
    header = [] if path.exists() else [(*_HEADER, "seed", "course version", "why")]
    with path.open("a", encoding="utf-8", errors="backslashreplace", newline="") as file:
        file.write(sheet([*header, (when, now.student, now.exercise, *points, "; ".join(changed), *under, why)]))
