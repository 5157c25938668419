"""Our grader beside nbgrader, on the same hand-ins in one run: `make nbgrader` writes the table into the docs.

Both get the notebook that we build and the same ten checks. nbgrader runs all cells of a hand-in in a new kernel, the
checks among them, where the learner's code is; a part's points are given if its check cell raises nothing. Ours takes
the answer cells alone, runs each part in a sandbox, and judges outside. So a grade is called right here if a part has
all its points where all its checks are met, and not otherwise. Both grade one hand-in after the other; our reference
run and all imports count. Processor seconds are those of all processes that a grader starts, read every 50 ms.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from helpers.core.files import ROOT, atomic_write
from helpers.course.build.front_page import DOCS, filled
from helpers.course.build.notebooks import make_notebook, write
from helpers.course.build.source import sources
from helpers.course.kernel.processes import adopt_orphans
from helpers.exercises import x1

import psutil

from ..attacks import ATTACKS, REFERENCE
from ..mutants import topics

X1 = next(source for source in sources() if source.exercise == "x1")
PARTS = {"scaler": 3, "step": 5, "compare": 2}  # answer cells with their points; the check cell is NAME_check
HOSTILE = (
    "patches_the_judge", "patches_the_probe", "imports_the_reference", "transforms_later_cells",
    "knows_the_constants_of_the_notebook_s_run", "swaps_a_function_s_body", "dies",
)  # fmt: skip
READ = """
import json
from nbgrader.api import Gradebook
with Gradebook("sqlite:///gradebook.db") as book:
    print(json.dumps([
        [hand_in.student.id, grade.cell.name, grade.auto_score]
        for hand_in in book.assignment_submissions("x1") for notebook in hand_in.notebooks for grade in notebook.grades
    ]))
"""


@dataclass(frozen=True)
class Case:
    """A hand-in: its answers by cell, and the parts that it has earned."""

    answers: dict[str, str]
    earned: frozenset[str]


@dataclass
class Outcome:
    """What a grader made of the hand-ins.

    Attributes:
        given: by student, the parts that got all their points; no entry where there is no grade.
        seconds, processor: of all hand-ins together.
    """

    given: dict[str, set[str]]
    seconds: float
    processor: float


def cases() -> dict[str, Case]:
    """Return the hand-ins by student: right ones, wrong ones and hostile ones."""
    right = REFERENCE["x1"]
    found = {
        "right": Case(right, frozenset(PARTS)),
        "right_in_two_parts": Case({name: right[name] for name in ("scaler", "step")}, frozenset({"scaler", "step"})),
        "untouched": Case({}, frozenset()),
    }
    for part, check in (("x1.scaler", "scale_grows"), ("x1.step", "clips_true_gradient")):
        mutant = next(m for m in topics()["x1"].MUTANTS if (m.part, m.rejected_by) == (part, check))
        cell = part.partition(".")[2]
        text = right[cell]
        for old, new in mutant.replace:
            assert text.count(old) == 1
            text = text.replace(old, new)
        found[f"wrong_{check}"] = Case({cell: text}, frozenset())
    for name in HOSTILE:
        attack = ATTACKS[name]
        found[name] = Case(attack.answers, frozenset({"scaler"} if attack.total == PARTS["scaler"] else ()))
    return found


def hand_in(case: Case) -> str:
    """Return the notebook of a hand-in."""
    notebook = make_notebook(X1, solved=False)
    for cell in notebook.cells:
        cell.source = case.answers.get(cell.id, cell.source)
    return write(notebook)


def ours(students: dict[str, Case], folder: Path) -> Outcome:
    """Grade with the command of the course; the run of the reference counts."""
    for student, case in students.items():
        place = folder / "class" / student
        place.mkdir(parents=True)
        (place / f"{X1.name}.ipynb").write_text(hand_in(case), encoding="utf-8")
    words = ["grade", str(folder / "class"), "--out", str(folder / "out"), "--seed", "5", "--jobs", "1"]
    seconds, processor = _timed([[sys.executable, "-m", "helpers", *words]], ROOT, dict(os.environ))
    with (folder / "out" / "gradebook.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file) if row["exercise"] == "x1"}
    checks = {part.name.partition(".")[2]: [f"x1.{check.name()}" for check in part.checks] for part in x1.PARTS}
    given = {
        student: {part for part, names in checks.items() if all(row[name] != "0" for name in names)}
        for student, row in rows.items()
    }
    return Outcome(given, seconds, processor)


def nbgraders(students: dict[str, Case], folder: Path, python: Path) -> Outcome:
    """Grade with nbgrader, whose environment `python` belongs to; kernels run with this Python."""
    environment = kernel_for(folder)
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"  # nbgrader calls alembic by its name
    notebook = f"{X1.name}.ipynb"
    source = folder / "source" / "x1"
    source.mkdir(parents=True)
    (source / notebook).write_text(write(make_notebook(X1, solved=True)), encoding="utf-8")
    for student, case in students.items():
        place = folder / "submitted" / student / "x1"
        place.mkdir(parents=True)
        (place / notebook).write_text(hand_in(case), encoding="utf-8")
    program = str(python.with_name("nbgrader"))
    subprocess.run([program, "generate_assignment", "x1"], cwd=folder, env=environment, check=True, capture_output=True)
    command = [program, "autograde", "x1", "--create", "--ExecutePreprocessor.timeout=1800"]
    seconds, processor = _timed([command], folder, environment)
    read = subprocess.run([str(python), "-c", READ], cwd=folder, check=True, capture_output=True, text=True)
    given: dict[str, set[str]] = {}
    for student, cell, score in json.loads(read.stdout):
        part = cell.removesuffix("_check")
        given.setdefault(student, set())
        if score == PARTS[part]:
            given[student].add(part)
    return Outcome(given, seconds, processor)


def kernel_for(folder: Path) -> dict[str, str]:
    """Write a kernel with this Python; return the environment in which Jupyter's programs find it."""
    kernel = folder / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    return {**os.environ, "JUPYTER_PATH": str(folder), "PYTHONPATH": str(ROOT)}


def _timed(commands: list[list[str]], folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Run commands; return seconds and processor seconds of them and of all that they start."""
    adopt_orphans()
    used: dict[tuple[int, float], float] = {}
    over = threading.Event()
    bystanders = {process.pid for process in psutil.Process().children(recursive=True)}

    def look() -> None:
        while not over.wait(0.05):
            for process in psutil.Process().children(recursive=True):
                try:
                    if process.pid not in bystanders:
                        times = process.cpu_times()
                        used[process.pid, process.create_time()] = times.user + times.system
                except psutil.Error:  # it has just ended
                    continue

    watcher = threading.Thread(target=look)
    watcher.start()
    began = time.perf_counter()
    for command in commands:
        subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    over.set()
    watcher.join()
    return time.perf_counter() - began, sum(used.values())


def wrong(students: dict[str, Case], outcome: Outcome) -> list[str]:
    """Return the students whose grade is wrong or missing."""
    return [student for student, case in students.items() if outcome.given.get(student) != case.earned]


def table(students: dict[str, Case], mine: Outcome, theirs: Outcome) -> str:
    """Return both outcomes as Markdown."""
    count = len(students)
    lines = ["| | ours | nbgrader |", "|---|--:|--:|"]
    rows = [(f"wrong grades, of {count}", len(wrong(students, mine)), len(wrong(students, theirs)))]
    rows += [("processor seconds a hand-in", f"{mine.processor / count:.1f}", f"{theirs.processor / count:.1f}")]
    lines += [f"| {what} | {a} | {b} |" for what, a, b in rows]
    lines += [f"| as a share of nbgrader's | {mine.processor / theirs.processor:.2f} | 1 |", ""]
    for name, outcome in (("ours", mine), ("nbgrader", theirs)):
        names = ", ".join(f"`{student}`" for student in wrong(students, outcome)) or "none"
        lines.append(f"Wrong in {name}: {names}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.grade.versus", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="STUDENT", help="these hand-ins alone; nothing is written")
    args = parser.parse_args()
    students = {name: case for name, case in cases().items() if not args.only or name in args.only}
    if not os.environ.get("NBGRADER_PYTHON"):
        parser.error("NBGRADER_PYTHON names no Python with nbgrader: make nbgrader sets it up.")
    python = Path(os.environ["NBGRADER_PYTHON"])
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        mine = ours(students, Path(one))
        print(f"ours: {mine}", flush=True)
        theirs = nbgraders(students, Path(two), python)
        print(f"nbgrader: {theirs}", flush=True)
    text = table(students, mine, theirs)
    print(text)
    if not args.only:
        page = DOCS / "comparison.md"
        atomic_write(page, filled(page, graders=text))


if __name__ == "__main__":
    main()
