"""From the evidence of a run to points and reasons. Nothing here runs a learner's code."""

import contextlib
import json
from dataclasses import dataclass, replace
from typing import Any

from ....exercises.base import Evidence, Outcome, Part, Verdict
from ....exercises.checking import find_part, judge
from ..intake.exercise_notebook import checks_of
from ..intake.hand_in import HandIn
from ..run.execute import Run


@dataclass(frozen=True)
class Result:
    """The grade of one submission.

    Attributes:
        status: one of graded, blank, partly (timeout), crashed, unreadable, missing, needs review; `reason` says why.
        answers: the learner's code, by answer cell.
        flags: what a human should look at; no flag costs a point.
        seconds: how long the submission ran; 0 if it did not.
        canvas: as in `HandIn`.
    """

    student: str
    exercise: str
    status: str
    reason: str
    verdicts: list[Verdict]
    answers: dict[str, str]
    flags: list[str]
    seconds: float
    canvas: str = ""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Result":
        """Return the result that `asdict` made `fields` of."""
        verdicts = [Verdict(**{**verdict, "outcome": Outcome(verdict["outcome"])}) for verdict in fields["verdicts"]]
        return cls(**{**fields, "verdicts": verdicts})

    @property
    def has_grade(self) -> bool:
        """Whether there are points to report; else it is missing, unreadable, or the grader itself could not run it."""
        return self.status not in ("missing", "unreadable") and (self.status != "needs review" or self.seconds > 0)

    @property
    def blank(self) -> bool:
        """Whether no part of it was attempted."""
        return self.status == "blank"

    @property
    def not_attempted(self) -> list[str]:
        """The checks of parts that were not attempted."""
        return [verdict.check for verdict in self.verdicts if verdict.outcome is Outcome.NOT_ATTEMPTED]

    @property
    def total(self) -> int:
        """Points reached."""
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def maximum(self) -> int:
        """Points that can be reached."""
        return sum(verdict.max_points for verdict in self.verdicts)


def parts_of(hand_in: HandIn) -> dict[str, Part]:
    """Map the check cells of the submission's exercise to their parts."""
    return {cell: find_part(name) for cell, name in checks_of(hand_in.source).items()}


def reports_of(run: Run, cell: str) -> dict[str, dict[str, Any]]:
    """Return the reports of a check cell, by check: see `run_part` of the kernel. A report of "" says that it died."""
    record = run.records.get(cell)
    reports = {}
    for text in record.reports if record else []:
        with contextlib.suppress(TypeError, ValueError):  # our kernel sends no such report, and nobody else should
            report = json.loads(text)
            if isinstance(report, dict) and isinstance(report.get("evidence", {}), dict):
                reports[str(report.get("check", ""))] = report
    return reports


def evidence_of(run: Run, cell: str) -> dict[str, Evidence]:
    """Return the evidence of a check cell, by check.

    Evidence counts only if the check ran as it was written: nothing under it was replaced meanwhile, and the answer did
    not work on threads where the check does not look.
    """
    evidence = {}
    for check, report in reports_of(run, cell).items():
        if report.get("changed_meanwhile"):
            what = ", ".join(report["changed_meanwhile"][:3])
            evidence[check] = {"stopped": f"while this check ran, {what} was replaced, so nothing it saw is reliable."}
        elif report.get("elsewhere"):
            evidence[check] = {
                "stopped": "while this check ran, the answer ran code in other threads, which the check cannot observe."
            }
        elif check:
            evidence[check] = report.get("evidence")
    return evidence


def _death(run: Run, cell: str) -> str | None:
    """Return how the process that ran a check cell ended, if it ended by itself."""
    return reports_of(run, cell).get("", {}).get("died")


def _flags(run: Run) -> tuple[list[str], bool]:
    """Return what a human should look at, and whether somebody tampered with a check."""
    flags, tampered = [], False
    for cell in run.records:
        for check, report in reports_of(run, cell).items():
            flags += report.get("heard", [])
            flags += [f"replaced {name}; put back before the checks ran" for name in report.get("changed", [])]
            flags += [f"replaced {name} while {check} ran" for name in report.get("changed_meanwhile", [])]
            flags += [f"ran code in other threads while {check} ran"] * bool(report.get("elsewhere"))
            tampered |= bool(report.get("changed_meanwhile") or report.get("elsewhere"))
    return list(dict.fromkeys(flags)), tampered


def not_run(hand_in: HandIn) -> Result:
    """Return the result of a submission that could not be run: no points, and the reason."""
    status, reason = hand_in.problem
    verdicts = [
        Verdict(check.name(), check.rule(), 0, check.points, Outcome.NOT_RUN, reason, check.hint)
        for part in parts_of(hand_in).values()
        for check in part.checks
    ]
    exercise = hand_in.source.exercise
    return Result(
        hand_in.student, exercise, status, reason, verdicts, hand_in.answers, hand_in.flags, 0.0, hand_in.canvas
    )


def grade_run(hand_in: HandIn, run: Run, expected: dict[str, dict[str, Evidence]]) -> Result:
    """Judge the evidence of `run` against `expected` (by check cell, then by check)."""
    verdicts: list[Verdict] = []
    for cell, part in parts_of(hand_in).items():
        evidence = evidence_of(run, cell)
        outcome, why_none = _why_no_evidence(run, cell)
        for verdict in judge(part, evidence, expected[cell]):
            without = replace(verdict, outcome=outcome, diagnosis=why_none)
            verdicts.append(verdict if verdict.check in evidence else without)
    flags, tampered = _flags(run)
    status, reason = _status(run, verdicts, tampered)
    flags = [*hand_in.flags, *flags]
    exercise, answers = hand_in.source.exercise, hand_in.answers
    return Result(hand_in.student, exercise, status, reason, verdicts, answers, flags, run.seconds, hand_in.canvas)


def _why_no_evidence(run: Run, cell: str) -> tuple[Outcome, str]:
    """Return how the checks of a cell ended that left no evidence, and why."""
    record = run.records.get(cell)
    culprit = next((r for r in run.records.values() if r.timed_out), None)
    if culprit and culprit.cell == cell:
        why = "Took too long: this check, or one before it in the same cell, did not end in time."
        return Outcome.TIMED_OUT, why
    if culprit:
        return Outcome.NOT_RUN, f"Did not run: the cell {culprit.cell} before it did not end in time."
    died = _death(run, cell)
    if died:
        return Outcome.NOT_RUN, f"Did not run: {died}."
    broken = next((r for r in run.records.values() if r.error and not r.reports), None)
    error = record.error if record and record.error else None
    if broken and broken.cell != cell:
        return Outcome.NOT_RUN, f"Did not run: the cell {broken.cell} failed with {broken.error}"
    return Outcome.NOT_RUN, f"Did not run: {error}" if error else "Did not run: the kernel ended before it."


def _status(run: Run, verdicts: list[Verdict], tampered: bool) -> tuple[str, str]:
    if run.timed_out:
        cell = next(r.cell for r in run.records.values() if r.timed_out)
        return "partly (timeout)", f"The cell {cell} did not end in time; what ran before it counts."
    if not run.finished:
        last = list(run.records.values())[-1:]
        where = f"in the cell {last[0].cell}: {last[0].error}" if last else "before the first cell"
        return "crashed", f"The run ended {where}; what ran before that counts."
    died = next(filter(None, (_death(run, cell) for cell in run.records)), None)
    if died:
        return "crashed", f"One part was cut short: {died}. What ran before that, and the other parts, count."
    if tampered:
        return "needs review", "A check did not run as written: see the flags."
    if all(verdict.outcome is Outcome.NOT_ATTEMPTED for verdict in verdicts):
        return "blank", "No answer was attempted."
    blank = [verdict.check for verdict in verdicts if verdict.outcome is Outcome.NOT_ATTEMPTED]
    failed = [verdict.check for verdict in verdicts if not verdict.passed and verdict.check not in blank]
    kinds = (("Missed", failed), ("Not attempted", blank))
    said = [f"{words}: {', '.join(checks)}." for words, checks in kinds if checks]
    return "graded", " ".join(said) or "All checks passed."
