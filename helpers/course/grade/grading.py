"""Grade a folder of hand-ins.

For each hand-in: take its answer cells, put them into the instructor's notebook, run that under nbval, and judge the
evidence out here, beside the evidence of the reference run with the same fresh seed.
"""

import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..build.source import NO_SOURCES, Source, sources
from .class_run import ClassRun
from .intake.collect import collect
from .intake.hand_in import HandIn
from .judge.result import Result
from .options import GradeError, GradingOptions
from .report.report import Report
from .report.roster import RosterError, read_roster
from .run.probes_only import probes_only
from .run.sandbox import Sandbox, find_bubblewrap
from .store.conditions import Conditions, course_version
from .store.store import Store, StoreError, open_store

MEMORY = 8 << 30  # bytes that one hand-in may use
NO_SANDBOX = (
    "There is no sandbox here (bubblewrap is missing, or may not make namespaces), so hand-ins run with your rights: "
    "these grades are untrusted. Grade only work of people whose code you would run."
)


def grade(submissions: Path, out: Path, **options: Any) -> list[Result]:
    """Grade every student folder in `submissions` and write gradebook, pages and exports to `out`.

    What was graded before under the same conditions and has not changed keeps its result, so that a run that was
    interrupted goes on where it stopped.

    Args:
        options: the fields of `GradingOptions`.

    Raises:
        GradeError: there is nothing to grade, or the reference fails on this machine.
        KeyboardInterrupt: interrupted; the results so far are written, and the message says how to go on.
    """
    settings = GradingOptions(**options)
    exercises = [source for source in sources() if source.graded]
    if not exercises:
        raise GradeError(NO_SOURCES)
    hand_ins = _hand_ins(submissions, exercises)
    if settings.regrade and not any(settings.regrades(hand_in.student) for hand_in in hand_ins):
        raise GradeError(f"No student's name matches --regrade {settings.regrade!r}.")
    console = Console()
    try:
        people = read_roster(settings.roster) if settings.roster else {}
        with open_store(out, submissions) as store:
            bubblewrap = find_bubblewrap()
            conditions = _conditions(store, settings, bubblewrap is not None, console)
            report = Report(out, conditions, len(hand_ins), people)
            with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as copy:
                sandbox = Sandbox(probes_only(Path(copy)), bubblewrap, MEMORY)
                results = ClassRun(settings, store, report, sandbox, console).grade(hand_ins)
    except (RosterError, StoreError) as error:
        raise GradeError(str(error)) from None
    _print_summary(results, report, console)
    return results


def _hand_ins(submissions: Path, exercises: list[Source]) -> list[HandIn]:
    if not submissions.is_dir():
        raise GradeError(f"{submissions} is not a folder. Give the folder that holds one folder a student.")
    try:
        hand_ins = collect(submissions, exercises)
    except OSError as error:
        raise GradeError(f"{submissions} cannot be read: {error.strerror}.") from None
    if not hand_ins:
        raise GradeError(f"{submissions} holds no folders, archives or notebooks of students.")
    return hand_ins


def _conditions(store: Store, settings: GradingOptions, sandboxed: bool, console: Console) -> Conditions:
    """Return the conditions of this run, write them down, and say what they change."""
    seed = store.seed(settings.seed, settings.fresh)
    conditions = Conditions(seed, course_version(), float(settings.timeout), sandboxed)
    changes = store.begin(conditions)
    if changes:
        console.print(f"Everything is run again: {', '.join(changes)}.", markup=False, soft_wrap=True)
    if not sandboxed:
        console.print(NO_SANDBOX, soft_wrap=True)
    return conditions


def _print_summary(results: list[Result], report: Report, console: Console) -> None:
    """Print a line for each hand-in, where the files are, and who is not in the roster."""
    table = Table("student", "exercise", "points", "status", "reason", title="Gradebook")
    for r in results:
        row = (r.student, r.exercise, f"{r.total}/{r.maximum}", r.status, r.reason)
        table.add_row(*map(Text, row))  # Text: a student's words are no markup
    console.print(table)
    out = report.out
    console.print(
        f"{out / 'class.html'} sums up, {out / 'gradebook.csv'} has all points, {out / 'feedback'} a page a student "
        f"(seed {report.conditions.seed}).",
        markup=False,
        soft_wrap=True,
    )
    strangers = sorted({r.student for r in results} - report.roster.keys()) if report.roster else []
    if strangers:
        console.print(f"Not in the roster, so not in moodle.csv: {', '.join(strangers)}", markup=False, soft_wrap=True)
