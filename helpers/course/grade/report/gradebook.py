"""The gradebook: a row for each student and exercise, a column for each check."""

from collections.abc import Iterable

from ..judge.result import Result
from ..store.conditions import Conditions
from .sheet import sheet


def gradebook(results: Iterable[Result], conditions: Conditions) -> str:
    """Return the gradebook as CSV: what each submission got, check by check, why, and under which conditions.

    Where there is no grade, as in `lms.py`, cells for points are empty; a check that was not attempted has 0, and is
    named in a column of its own.
    """
    results = list(results)
    checks = list(dict.fromkeys(f"{r.exercise}.{v.check}" for r in results for v in r.verdicts))
    trust = "yes" if conditions.sandbox else "no: untrusted"
    rows: list[list[str | float | None]] = [
        [
            "student",
            "exercise",
            "status",
            "total",
            "max",
            *checks,
            "not attempted",
            "flags",
            "seed",
            "seconds",
            "course version",
            "sandbox",
            "reason",
        ]
    ]
    for r in results:
        points = {f"{r.exercise}.{v.check}": v.points for v in r.verdicts}
        rows.append(
            [
                *(r.student, r.exercise, r.status, r.total if r.has_grade else None, r.maximum),
                *(points.get(check) if r.has_grade else None for check in checks),
                *("; ".join(r.not_attempted), "; ".join(r.flags), conditions.seed),
                *(round(r.seconds, 1), conditions.course, trust, r.reason),
            ]
        )
    return sheet(rows)
