"""Three graders of the same submissions for X1: ours, nbgrader and otter, each as its teachers run it.

nbgrader and otter run all cells of a submission in a new kernel, the checks among them, where the learner's code is; a
part's points are given if its check raises nothing. Ours takes the answer cells alone, runs each part in a sandbox, and
judges outside. All grade one submission after the other; our reference run and all imports count. Processor seconds are
those of all processes that a grader starts, read every 50 ms.
"""

import csv
import json
import os
import subprocess
import sys
import sysconfig
import threading
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from helpers.core.files import ROOT
from helpers.course.build.notebooks import make_notebook, write
from helpers.course.build.source import sources
from helpers.course.kernel.processes import adopt_orphans
from helpers.exercises import x1

import psutil

X1 = next(source for source in sources() if source.exercise == "x1")
PARTS = {"scaler": 3, "step": 5, "compare": 2}  # answer cells with their points; the check cell is NAME_check
READ = """
import json
from nbgrader.api import Gradebook
with Gradebook("sqlite:///gradebook.db") as book:
    print(json.dumps([
        [hand_in.student.id, grade.cell.name, grade.auto_score]
        for hand_in in book.assignment_submissions("x1") for notebook in hand_in.notebooks for grade in notebook.grades
    ]))
"""
SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
OTTER_TEST = """
OK_FORMAT = False
name = "{part}"
points = {points}

from otter.test_files import test_case

@test_case()
def test_{part}(env):
    import os
    os.environ["NBGRADER_EXECUTION"] = "validate"  # then a failed check raises
    from helpers import check
    check("x1.{part}", {answers})
"""


@dataclass(frozen=True)
class Case:
    """A submission: its answers by cell, and the parts that it has earned."""

    answers: dict[str, str]
    earned: frozenset[str]


@dataclass
class Outcome:
    """What a grader made of the submissions.

    Attributes:
        given: by student, the parts that got all their points; no entry where there is no grade.
        seconds, processor: of all submissions together.
    """

    given: dict[str, set[str]]
    seconds: float
    processor: float


def hand_in(case: Case) -> str:
    """Return the notebook of a submission."""
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


def otters(students: dict[str, Case], folder: Path, python: Path) -> Outcome:
    """Grade with otter, in whose environment `python` the kernels run, too; it also finds this environment's packages.

    The submissions go without their check cells: otter asks the checks itself, after all cells.
    """
    with zipfile.ZipFile(folder / "autograder.zip", "w") as archive:
        archive.writestr("otter_config.json", "{}")
        for part in x1.PARTS:
            name = part.name.partition(".")[2]
            answers = ", ".join(f'env["{answer}"]' for answer in part.answers)
            archive.writestr(f"tests/{name}.py", OTTER_TEST.format(part=name, points=PARTS[name], answers=answers))
    environment = kernel_for(folder, str(python))
    paths = (str(ROOT), sysconfig.get_path("purelib"))
    finder = f"import sys; sys.path += {paths!r}\n"  # last, so that otter's own packages come first
    site = subprocess.run([str(python), "-c", SITE], check=True, capture_output=True, text=True).stdout.strip()
    (Path(site) / "course.pth").write_text(finder, encoding="utf-8")
    commands = []
    for student, case in students.items():
        notebook = json.loads(hand_in(case))
        notebook["cells"] = [cell for cell in notebook["cells"] if not cell["id"].endswith("_check")]
        path = folder / f"{student}.ipynb"
        path.write_text(json.dumps(notebook), encoding="utf-8")
        (folder / student).mkdir()
        program = str(python.with_name("otter"))
        commands.append([program, "run", str(path), "-a", "autograder.zip", "-o", str(folder / student), "--no-logo"])
    seconds, processor = _timed(commands, folder, environment)
    given: dict[str, set[str]] = {}
    for student in students:
        results = folder / student / "results.json"
        if results.exists():
            tests = json.loads(results.read_text(encoding="utf-8"))["tests"]
            given[student] = {t["name"] for t in tests if t["name"] in PARTS and t["score"] == PARTS[t["name"]]}
    return Outcome(given, seconds, processor)


def kernel_for(folder: Path, python: str = sys.executable) -> dict[str, str]:
    """Write a kernel with `python`; return the environment in which Jupyter's programs find it."""
    kernel = folder / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
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
