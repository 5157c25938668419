"""Grade a folder of submissions.

For each submission: take its answer cells, put them into the instructor's notebook, run that under nbval, and judge the
evidence out here, beside the evidence of the reference run with the same fresh seed.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..build.source import Source
from .bench import Bench
from .class_run import ClassRun, submitted
from .intake.collect import class_below, collect, one_student
from .intake.hand_in import HandIn
from .judge.result import Result
from .options import GradeError, GradingOptions, graded_sources
from .report.policy import Policy, PolicyError, read_policy
from .report.pseudonyms import pseudonyms
from .report.report import Report
from .report.roster import RosterError, read_roster
from .run.warm import WarmServers
from .store.conditions import Conditions, course_version
from .store.store import Store, StoreError, open_store
from .watch import State, state_of, wait_for_change

NO_SANDBOX = (
    "There is no sandbox here (bubblewrap is missing, or is not allowed to create namespaces), so submissions run with "
    "your permissions, and these grades are untrusted. Grade only the work of people whose code you would run yourself."
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
    exercises = settings.set_exercises(graded_sources())
    console = Console()
    try:
        people = read_roster(settings.roster) if settings.roster else {}
        policy = read_policy(settings.policy) if settings.policy else Policy()
        seen = state_of(submissions)
        hand_ins = _hand_ins(submissions, exercises, settings)
        with open_store(out, submissions) as store, WarmServers() as servers:
            conditions = _conditions(store, settings, bool(servers.bubblewrap), console)
            report = Report(out, conditions, len(hand_ins), people, policy, sender=settings.email)
            run = ClassRun(settings, store, report, Bench(conditions, servers, store), console)
            results = _graded(run, hand_ins)
            while settings.watch and (seen := _something_new(submissions, seen, console)):
                # What was asked for once is done: from now on only what is new is run.
                run = replace(run, options=replace(settings, fresh=False, regrade=None))
                results = _graded(run, _hand_ins(submissions, exercises, run.options))
    except (PolicyError, RosterError, StoreError) as error:
        raise GradeError(str(error)) from None
    return results


def _something_new(submissions: Path, seen: State, console: Console) -> State | None:
    """Wait for a change of the folder; return its new state, or None when the instructor has had enough."""
    console.print(f"Watching {submissions}. Press Ctrl-C to stop.", markup=False, soft_wrap=True)
    try:
        return wait_for_change(submissions, seen)
    except KeyboardInterrupt:
        return None


def _graded(run: ClassRun, hand_ins: list[HandIn]) -> list[Result]:
    """Grade and sum up."""
    report, names = run.report, {}
    if run.options.anonymous:
        names = pseudonyms(report.out / "names.csv", dict.fromkeys(hand_in.student for hand_in in hand_ins))
    sliced = run.options.slice[1] > 1  # then others may have submitted, too
    students = None if sliced else {hand_in.student for hand_in in hand_ins}
    report = replace(report, planned=len(hand_ins), names=names, students=students)
    _print_task(hand_ins, run.console)
    results = replace(run, report=report).grade(hand_ins)
    _print_summary(results, report, run.console)
    return results


def _hand_ins(submissions: Path, exercises: list[Source], settings: GradingOptions) -> list[HandIn]:
    if not submissions.is_dir():
        raise GradeError(f"{submissions} is not a folder. Give the folder that contains one folder per student.")
    try:
        hand_ins = collect(submissions, exercises)
    except OSError as error:
        raise GradeError(f"{submissions} cannot be read: {error.strerror}.") from None
    if not hand_ins and not settings.watch:
        raise GradeError(f"{submissions} contains no student folders, archives or notebooks.")
    if not settings.watch and (below := class_below(submissions, exercises)):
        print(
            f"Only one student was found, {below.name}, whose folders hold several submissions for the same exercise."
        )
        print(f"If these are the students, grade {below} instead.")
    if not settings.watch and hand_ins and one_student(submissions, exercises):
        print(f"Nothing in {submissions} has the name of a student, so each notebook or folder in it counts as one.")
        print(f"If it is the folder of one student, grade the folder above instead: {submissions.resolve().parent}.")
    if settings.regrade and not any(settings.regrades(hand_in.student) for hand_in in hand_ins):
        raise GradeError(f"No student's name matches --regrade {settings.regrade!r}.")
    if hand_ins and not (settings.exercise or settings.watch) and all(map(_is_missing, hand_ins)):
        raise GradeError(
            f"No graded exercise was found in {submissions}. Is it the folder that has one folder per student?"
        )
    return settings.mine(hand_ins if settings.exercise else _submitted(hand_ins))


def _is_missing(hand_in: HandIn) -> bool:
    return hand_in.problem is not None and hand_in.problem[0] == "missing"


def _submitted(hand_ins: list[HandIn]) -> list[HandIn]:
    """Return the submissions for the exercises that at least one student submitted, or all if there are none.

    A student whose files are all unreadable does not count: it is not known which exercise they were for.
    """
    by_student: dict[str, list[HandIn]] = {}
    for hand_in in hand_ins:
        by_student.setdefault(hand_in.student, []).append(hand_in)
    found = set()
    for theirs in by_student.values():
        here = [each.source for each in theirs if not _is_missing(each)]
        unclear = len(here) == len(theirs) > 1 and all(each.problem for each in theirs)
        found |= set() if unclear else set(here)
    return [hand_in for hand_in in hand_ins if hand_in.source in found] if found else hand_ins


def _conditions(store: Store, settings: GradingOptions, sandboxed: bool, console: Console) -> Conditions:
    """Return the conditions of this run, write them down, and say what they change."""
    seed = store.seed(settings.seed, settings.fresh)
    conditions = Conditions(seed, course_version(), float(settings.timeout), sandboxed)
    changes = store.begin(conditions)
    if changes:
        console.print(
            f"Running everything again, because the conditions have changed: {', '.join(changes)}.",
            markup=False,
            soft_wrap=True,
        )
    if not sandboxed:
        console.print(NO_SANDBOX, soft_wrap=True)
    return conditions


def _print_task(hand_ins: list[HandIn], console: Console) -> None:
    """Print what is going to be graded."""
    students, names = len({h.student for h in hand_ins}), sorted({h.source.exercise for h in hand_ins})
    missing = len(hand_ins) - submitted(hand_ins)
    line = f"{_count(students, 'student')}, {_count(submitted(hand_ins), 'submission')} for {', '.join(names)}"
    console.print(line + (f"; {missing} not submitted." if missing else "."), markup=False, soft_wrap=True)


def _style(result: Result) -> str:
    """Return the color of a line: that of the feedback page where points are missing, quiet where nothing was done."""
    if not result.has_grade or result.blank:
        return "dim"
    return "" if result.total == result.maximum else "dark_orange3"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _print_summary(results: list[Result], report: Report, console: Console) -> None:
    """Print a line for each submission, where the files are, and who is only on the roster, or not on it."""
    table = Table("student", "exercise", "points", "status", "reason", title="Gradebook")
    for r in map(report.shown, results):
        points = f"{r.total if r.has_grade else '-'}/{r.maximum}"
        # Text: a student's words are no markup.
        table.add_row(*map(Text, (r.student, r.exercise, points, r.status, r.reason)), style=_style(r))
    console.print(table)
    out = report.out
    console.print(
        f"{out / 'class.html'} is the summary, {out / 'gradebook.csv'} has all points, and {out / 'feedback'} has a "
        f"page per student (seed {report.conditions.seed}).",
        markup=False,
        soft_wrap=True,
    )
    strangers = sorted({r.student for r in results} - report.roster.keys()) if report.roster else []
    strangers = [report.name(student) for student in strangers]
    absent = sorted(report.roster.keys() - {r.student for r in results}) if not report.names else []
    if absent:
        line = f"On the roster, but nothing was submitted: {', '.join(absent)}"
        console.print(line, markup=False, soft_wrap=True)
    if strangers:
        console.print(f"Not on the roster, so not in moodle.csv: {', '.join(strangers)}", markup=False, soft_wrap=True)
