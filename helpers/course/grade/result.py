"""From the evidence of a run to points and reasons. Nothing here runs a learner's code."""

import json
from dataclasses import dataclass

from ...exercises.base import Evidence, Part, Verdict
from ...exercises.run import NOT_ATTEMPTED_YET, find_part, judge
from .collect import HandIn, checks_of
from .run import Run


@dataclass
class Result:
    """The grade of one hand-in.

    Attributes:
        status: one of graded, partly (timeout), crashed, unreadable, missing, needs review; `reason` says why.
        answers: the learner's code, by answer cell.
        flags: what a human should look at; no flag costs a point.
        seconds: how long the hand-in ran; 0 if it did not.
    """

    student: str
    exercise: str
    status: str
    reason: str
    verdicts: list[Verdict]
    answers: dict[str, str]
    flags: list[str]
    seconds: float

    @property
    def total(self) -> int:
        """Points reached."""
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def maximum(self) -> int:
        """Points that can be reached."""
        return sum(verdict.max_points for verdict in self.verdicts)


def parts_of(hand_in: HandIn) -> dict[str, Part]:
    """Map the check cells of the hand-in's exercise to their parts."""
    return {cell: find_part(name) for cell, name in checks_of(hand_in.source).items()}


def evidence_of(run: Run, cell: str) -> dict[str, Evidence]:
    """Return the evidence that a check cell displayed, by check. What is no evidence is left out."""
    found: dict[str, Evidence] = {}
    record = run.records.get(cell)
    for text in record.evidence if record else []:
        try:
            found |= json.loads(text)
        except (TypeError, ValueError):
            continue
    return found


def not_run(hand_in: HandIn) -> Result:
    """Return the result of a hand-in that could not be run: no points, and the reason."""
    status, reason = hand_in.problem
    verdicts = [
        Verdict(check.name(), check.rule(), 0, check.points, reason, check.hint)
        for part in parts_of(hand_in).values()
        for check in part.checks
    ]
    exercise = hand_in.source.exercise
    return Result(hand_in.student, exercise, status, reason, verdicts, hand_in.answers, hand_in.flags, 0.0)


def grade_run(hand_in: HandIn, run: Run, expected: dict[str, dict[str, Evidence]]) -> Result:
    """Judge the evidence of `run` against `expected` (by check cell, then by check)."""
    verdicts: list[Verdict] = []
    for cell, part in parts_of(hand_in).items():
        seen = evidence_of(run, cell)
        stopped = _why_no_evidence(run, cell)
        for verdict in judge(part, seen, expected[cell]):
            diagnosis = stopped if verdict.check not in seen else verdict.diagnosis
            verdicts.append(Verdict(**{**vars(verdict), "diagnosis": diagnosis}))
    status, reason = _status(run, verdicts)
    flags = [*hand_in.flags, *run.flags]
    exercise = hand_in.source.exercise
    return Result(hand_in.student, exercise, status, reason, verdicts, hand_in.answers, flags, run.seconds)


def _why_no_evidence(run: Run, cell: str) -> str:
    record = run.records.get(cell)
    culprit = next((r for r in run.records.values() if r.timed_out), None)
    if culprit and culprit.cell == cell:
        return "Took too long: this check, or one before it in the same cell, did not end in time."
    if culprit:
        return f"Did not run: the cell {culprit.cell} before it did not end in time."
    broken = next((r for r in run.records.values() if r.error and not r.evidence), None)
    error = record.error if record and record.error else None
    if broken and broken.cell != cell:
        return f"Did not run: the cell {broken.cell} failed with {broken.error}"
    return f"Did not run: {error}" if error else "Did not run: the kernel ended before it."


def _status(run: Run, verdicts: list[Verdict]) -> tuple[str, str]:
    if run.timed_out:
        cell = next(r.cell for r in run.records.values() if r.timed_out)
        return "partly (timeout)", f"The cell {cell} did not end in time; what ran before it counts."
    if not run.finished:
        last = list(run.records.values())[-1:]
        where = f"in the cell {last[0].cell}: {last[0].error}" if last else "before the first cell"
        return "crashed", f"The run broke off {where}; what ran before it counts."
    if all(verdict.diagnosis == NOT_ATTEMPTED_YET for verdict in verdicts):
        return "graded", "No answer was attempted."
    failed = [verdict.check for verdict in verdicts if not verdict.passed]
    return "graded", f"Missed: {', '.join(failed)}." if failed else "All checks passed."
