"""Grading a whole folder in one run: every submission gets a row, a status and a reason."""

import csv
from dataclasses import replace

from helpers.course.build.notebooks import make_notebook, write
from helpers.course.build.source import sources
from helpers.course.grade import bench, grade
from helpers.course.grade.intake.collect import collect
from helpers.course.grade.intake.hand_in import HandIn, grading_notebook
from helpers.course.grade.judge.result import grade_run, not_run, parts_of
from helpers.course.grade.report.feedback import page_name
from helpers.course.grade.run.execute import CellRecord, Run

import pytest

from ..sampling import sample

GRADED = [source for source in sources() if source.graded]
X1 = GRADED[0]
OTHER = sample(GRADED[1:3], one_in=2)[0]  # is graded beside X1, the other one the next day


def put(folder, text, source=X1):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{source.name}.ipynb").write_text(text, encoding="utf-8")


def solved(*replace, drop=()):
    """The solved notebook as text, with words replaced and cells dropped."""
    notebook = make_notebook(X1, solved=True)
    notebook.cells = [cell for cell in notebook.cells if cell.id not in drop]
    for old, new in replace:
        assert sum(old in cell.source for cell in notebook.cells) == 1
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    return write(notebook)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Grade a class with one of each kind, once."""
    root = tmp_path_factory.mktemp("class")
    hand_ins = root / "submissions"
    put(hand_ins / "right", solved())
    put(hand_ins / "right", write(make_notebook(OTHER, solved=True)), OTHER)
    unscale = "        scaler.unscale_(optimizer)  # clip the true gradient, not the scaled one\n"
    put(hand_ins / "wrong [one]", solved((unscale, "        pass\n")))
    (hand_ins / "empty").mkdir()
    put(hand_ins / "unreadable", '{"cells": [')
    put(hand_ins / "hanging", solved(("    optimizer.zero_grad()", "    __import__('time').sleep(10_000)")))
    put(hand_ins / "untouched", write(make_notebook(X1, solved=False)))
    put(hand_ins / "dies", solved(("    optimizer.zero_grad()", "    __import__('os')._exit(1)")))
    put(hand_ins / "syntax", solved(("def train(precision", "def train(precision precision")))
    out = root / "grades"
    results = grade(hand_ins, out, seed=7, jobs=2, timeout=90)  # long, for noisy machines
    with (out / "gradebook.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["student"], row["exercise"]): row for row in csv.DictReader(file)}
    assert (rows["right", OTHER.exercise]["total"], rows["right", OTHER.exercise]["status"]) == ("10", "graded")
    assert rows["wrong [one]", OTHER.exercise]["status"] == "missing"
    first = {student: row for (student, exercise), row in rows.items() if exercise == "x1"}
    return out, first, {r.student: r for r in results if r.exercise == "x1"}


@pytest.mark.slow
def test_every_hand_in_gets_a_row_with_status_and_reason(graded):
    _, rows, _ = graded
    assert {name: (row["total"], row["status"]) for name, row in rows.items()} == {
        "right": ("10", "graded"),
        "wrong [one]": ("7", "graded"),
        "empty": ("", "missing"),
        "unreadable": ("", "unreadable"),
        "hanging": ("3", "partly (timeout)"),
        "untouched": ("0", "blank"),
        "dies": ("3", "crashed"),
        "syntax": ("8", "graded"),
    }
    assert all(row["reason"] and row["max"] == "10" and row["seed"] == "7" for row in rows.values())


@pytest.mark.slow
def test_points_stand_with_the_checks_that_gave_them(graded):
    _, rows, _ = graded
    missed = [name for name, points in rows["wrong [one]"].items() if name.startswith("x1.") and points == "0"]
    assert missed == ["x1.clips_true_gradient", "x1.steps_in_a_row", "x1.accuracy_holds"]
    assert "ended by itself" in rows["dies"]["reason"]
    assert rows["hanging"]["x1.scale_grows"] == "1"
    assert "SyntaxError" in graded[2]["syntax"].verdicts[-1].diagnosis


@pytest.mark.slow
def test_feedback_pages_explain_and_keep_the_solution_hidden(graded):
    out, rows, _ = graded
    pages = {name: (out / "feedback" / page_name(name)).read_text(encoding="utf-8") for name in rows}
    assert "7 of 10 points" in pages["wrong [one]"]
    assert "Was the gradient unscaled first, and then clipped to one norm over all parameters" in pages["wrong [one]"]
    assert "scaler.scale(loss).backward()" in pages["wrong [one]"]  # the learner's own code
    assert "scaler.scale(loss).backward()" not in pages["untouched"]
    assert "did not end in time" in pages["hanging"]


def test_answers_are_transplanted_and_nothing_else(tmp_path):
    notebook = make_notebook(X1, solved=True)
    for cell in notebook.cells:
        if cell.cell_type == "code" and "nbgrader" not in cell.metadata:
            cell.source = "raise SystemExit('my own set-up')"
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.source, cell.metadata.nbgrader.points = "print('10 of 10')", 1000
    notebook.cells.reverse()
    put(tmp_path / "eve", write(notebook))
    (hand_in,) = collect(tmp_path, [X1])
    assert sorted(hand_in.answers) == ["compare", "scaler", "step"]
    made = grading_notebook(hand_in, seed=5)
    assert [cell.id for cell in made.cells] == [
        "setup", "scaler", "scaler_check", "step", "step_check", "compare", "compare_check"
    ]  # fmt: skip
    text = write(made)
    assert "my own set-up" not in text
    assert "10 of 10" not in text
    assert 'collect(\\"x1.step\\", train_step, seed=5)' in text


def test_orders_to_nbval_are_taken_out():
    made = grading_notebook(HandIn("eve", X1, {"scaler": "# NBVAL_SKIP\nx = 1"}), seed=1)
    (cell,) = [cell for cell in made.cells if cell.id == "scaler"]
    assert cell.source == "# cell: scaler\n# (taken out) NBVAL_SKIP\nx = 1"


def test_a_hand_in_that_breaks_the_grader_costs_nobody_else(tmp_path, monkeypatch):
    for name in ("ada", "ben"):
        put(tmp_path / "class" / name, solved())
    monkeypatch.setattr(bench, "expected_evidence", lambda *args: {})

    def broken(hand_in, *args):
        if hand_in.student == "ada":
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "as an example")
        return Run({}, False)

    monkeypatch.setattr(bench, "run_hand_in", broken)
    problem = ("graded", "as an example")
    monkeypatch.setattr(bench, "grade_run", lambda hand_in, *rest: not_run(replace(hand_in, problem=problem)))
    results = grade(tmp_path / "class", tmp_path / "out", seed=1)
    first = [r for r in results if r.exercise == "x1"]
    assert [(r.student, r.status) for r in first] == [("ada", "needs review"), ("ben", "graded")]
    assert "UnicodeEncodeError" in first[0].reason


def test_forged_or_broken_evidence_earns_nothing():
    hand_in = HandIn("eve", X1, {})
    junk = ["not json", "3", "null", "{}", '{"check": "scale_grows", "evidence": {"seen": {"scales": []}}}']
    junk += ['{"check": "clips_true_gradient", "evidence": {"seen": 3}}', '{"check": "scale_grows", "evidence": [1]}']
    records = {cell: CellRecord(cell, None, False, junk) for cell in parts_of(hand_in)}
    expected = {
        cell: {check.name(): {"seen": {"scales": [1.0]}} for check in part.checks}
        for cell, part in parts_of(hand_in).items()
    }
    result = grade_run(hand_in, Run(records, True), expected)
    assert result.total == 0
    assert result.maximum == 10
