"""Grade a folder of hand-ins.

For each hand-in: take its answer cells, put them into the instructor's notebook, run that under nbval, and judge the
evidence out here, beside the evidence of the reference run with the same fresh seed.
"""

import os
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...exercises.base import Evidence
from ...exercises.run import judge
from ..source import NO_SOURCES, Source, sources
from .collect import HandIn, collect, reference_hand_in
from .probes_only import probes_only
from .report import write_reports
from .result import Result, evidence_of, grade_run, not_run, parts_of
from .run import run_hand_in
from .sandbox import Sandbox, find_bubblewrap

MEMORY = 8 << 30  # bytes that one hand-in may use


class GradeError(Exception):
    """Grading cannot begin. The message says what to change."""


def _hand_ins(submissions: Path, out: Path, exercises: list[Source]) -> list[HandIn]:
    if not submissions.is_dir():
        raise GradeError(f"{submissions} is not a folder. Give the folder that holds one folder a student.")
    if out.resolve().parent == submissions.resolve():
        raise GradeError(f"{out} lies among the hand-ins: the next run would take it for a student. Choose another.")
    try:
        hand_ins = collect(submissions, exercises)
    except OSError as error:
        raise GradeError(f"{submissions} cannot be read: {error.strerror}.") from None
    if not hand_ins:
        raise GradeError(f"{submissions} holds no folders, archives or notebooks of students.")
    return hand_ins


def _expected(source: Source, seed: int, timeout: float, sandbox: Sandbox) -> dict[str, dict[str, Evidence]]:
    """Return the evidence of the reference, by check cell; it must earn full points before anyone is graded."""
    hand_in = reference_hand_in(source)
    run = run_hand_in(hand_in, seed, timeout, sandbox)
    expected = {cell: evidence_of(run, cell) for cell in parts_of(hand_in)}
    for cell, part in parts_of(hand_in).items():
        names = {check.name() for check in part.checks}
        if set(expected[cell]) != names or not all(v.passed for v in judge(part, expected[cell], expected[cell])):
            raise GradeError(
                f"The reference solution of {source.name} does not pass its own check {part.name} on this machine; "
                f"nobody was graded. Try a longer --timeout (now {timeout:g} s)."
            )
    return expected


def grade(submissions: Path, out: Path, seed: int | None = None, jobs: int = 1, timeout: float = 120) -> list[Result]:
    """Grade every student folder in `submissions` and write gradebook and feedback pages to `out`.

    Args:
        seed: decides the inputs of all checks; None draws a fresh one.
        jobs: hand-ins run at a time.
        timeout: seconds one cell may take.

    Raises:
        GradeError: there is nothing to grade, or the reference fails on this machine.
    """
    if jobs < 1 or timeout <= 0:
        raise GradeError("--jobs must be at least 1 and --timeout more than 0 seconds.")
    exercises = [source for source in sources() if source.graded]
    if not exercises:
        raise GradeError(NO_SOURCES)
    hand_ins = _hand_ins(submissions, out, exercises)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GradeError(f"Results cannot be written to {out}: {error.strerror}.") from None
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    console = Console()
    bubblewrap = find_bubblewrap()
    if bubblewrap is None:
        console.print(
            "There is no sandbox here (bubblewrap is missing, or may not make namespaces), so hand-ins run with your "
            "rights: these grades are untrusted. Grade only work of people whose code you would run."
        )
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with tempfile.TemporaryDirectory(prefix="course-") as copy:
        sandbox = Sandbox(probes_only(Path(copy)), bubblewrap, MEMORY, threads)
        results = _grade_all(hand_ins, exercises, seed, jobs, timeout, sandbox, out, console)
    console.print(_summary(results))
    console.print(f"{out / 'gradebook.csv'} and one page a student in {out / 'feedback'} (seed {seed})", markup=False)
    return results


def _grade_all(
    hand_ins: list[HandIn],
    exercises: list[Source],
    seed: int,
    jobs: int,
    timeout: float,
    sandbox: Sandbox,
    out: Path,
    console: Console,
) -> list[Result]:
    expected = {source.name: _expected(source, seed, timeout, sandbox) for source in exercises}

    def one(hand_in: HandIn) -> Result:
        if not hand_in.problem:
            try:
                run = run_hand_in(hand_in, seed, timeout, sandbox)
                return grade_run(hand_in, run, expected[hand_in.source.name])
            except Exception as error:  # whatever is in a hand-in, the others get their grades
                hand_in.problem = ("needs review", f"It could not be graded: {type(error).__name__}: {error}"[:200])
        return not_run(hand_in)

    results: list[Result] = []
    with ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(one, hand_ins):  # in order: the gradebook grows row by row
            results.append(result)
            write_reports(results, out, seed)
            line = f"[{len(results)}/{len(hand_ins)}] {result.student} {result.exercise}: "
            console.print(f"{line}{result.total} of {result.maximum}, {result.status}", markup=False, highlight=False)
    return results


def _summary(results: list[Result]) -> Table:
    table = Table("student", "exercise", "points", "status", "reason", title="Gradebook")
    for r in results:
        row = (r.student, r.exercise, f"{r.total}/{r.maximum}", r.status, r.reason)
        table.add_row(*map(Text, row))  # Text: a student's words are no markup
    return table
