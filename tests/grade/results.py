"""Results and submissions for the tests of reports and of the store."""

import csv
from io import StringIO

from helpers.course.build.notebooks import make_notebook, write
from helpers.course.build.source import sources
from helpers.course.grade.intake.hand_in import HandIn
from helpers.course.grade.judge.result import Result, not_run, parts_of
from helpers.course.grade.store.conditions import Conditions
from helpers.exercises.base import Outcome, Verdict

GRADED = [source for source in sources() if source.graded]
X1 = GRADED[0]
CONDITIONS = Conditions(seed=11, course="1.2+abc", timeout=60.0, sandbox=True)
TOO_LARGE = "The gradient is 4.0x too large, expected 1.0: was the loss divided?"


def stubs(source):
    cells = make_notebook(source, solved=False).cells
    return {c.id: c.source for c in cells if c.metadata.get("nbgrader", {}).get("solution")}


def verdict(check, missed=None):
    """A verdict: passed, or `missed` for a diagnosis, or for (outcome, diagnosis)."""
    outcome, diagnosis = missed if isinstance(missed, tuple) else (Outcome.MISSED, missed)
    if missed is None:
        return Verdict(check.name(), check.rule(), check.points, check.points, Outcome.PASSED, None, check.hint)
    return Verdict(check.name(), check.rule(), 0, check.points, outcome, diagnosis, check.hint)


def result(
    student="ada", source=X1, missed=(), status="graded", reason="As an example.", flags=(), answers=None, canvas=""
):
    """A result with all points but those of `missed`, a map from check to diagnosis, or to (outcome, diagnosis)."""
    checks = [check for part in parts_of(HandIn(student, source)).values() for check in part.checks]
    verdicts = [verdict(check, dict(missed).get(check.name())) for check in checks]
    answers = stubs(source) if answers is None else answers
    return Result(student, source.exercise, status, reason, verdicts, answers, list(flags), 12.3, canvas)


def missing(student="ada", source=X1, status="missing", reason="03b_x1_amp_cnn.ipynb was not submitted; no notebook."):
    return not_run(HandIn(student, source, {}, (status, reason)))


def rows_of(text):
    return list(csv.DictReader(StringIO(text)))


def hand_in(root, student, more="", source=X1):
    notebook = make_notebook(source, solved=True)
    cell = next(c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("solution"))
    cell.source += f"\n# {student}{more}"
    folder = root / "class" / student
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{source.name}.ipynb").write_text(write(notebook), encoding="utf-8")
