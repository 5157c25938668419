"""Grade a folder of hand-ins.

For each hand-in: take its answer cells, put them into the instructor's notebook, run that under nbval, and judge the
evidence out here, beside the evidence of the reference run with the same fresh seed.
"""

import fnmatch
import tempfile
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...exercises.base import Evidence
from ...exercises.checking import judge
from ..build.source import NO_SOURCES, Source, sources
from .intake.collect import collect
from .intake.hand_in import HandIn, reference_hand_in
from .judge.result import Result, evidence_of, grade_run, not_run, parts_of
from .report.live import Live
from .report.report import Report
from .report.roster import RosterError, read_roster
from .run.descendants import end_descendants
from .run.probes_only import probes_only
from .run.run import run_hand_in
from .run.sandbox import Sandbox, find_bubblewrap
from .store.conditions import Conditions, course_version
from .store.store import Store, StoreError, open_store

MEMORY = 8 << 30  # bytes that one hand-in may use
NO_SANDBOX = (
    "There is no sandbox here (bubblewrap is missing, or may not make namespaces), so hand-ins run with your rights: "
    "these grades are untrusted. Grade only work of people whose code you would run."
)


class GradeError(Exception):
    """Grading cannot begin. The message says what to change."""


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


def _expected(source: Source, conditions: Conditions, sandbox: Sandbox) -> dict[str, dict[str, Evidence]]:
    """Return the evidence of the reference, by check cell; it must earn full points before anyone is graded."""
    hand_in = reference_hand_in(source)
    run = run_hand_in(hand_in, conditions.seed, conditions.timeout, sandbox)
    expected = {cell: evidence_of(run, cell) for cell in parts_of(hand_in)}
    for cell, part in parts_of(hand_in).items():
        names = {check.name() for check in part.checks}
        if set(expected[cell]) != names or not all(v.passed for v in judge(part, expected[cell], expected[cell])):
            raise GradeError(
                f"The reference solution of {source.name} does not pass its own check {part.name} on this machine; "
                f"nobody was graded. Try a longer --timeout (now {conditions.timeout:g} s)."
            )
    return expected


def grade(
    submissions: Path,
    out: Path,
    seed: int | None = None,
    jobs: int = 1,
    timeout: float = 120,
    fresh: bool = False,
    regrade: str | None = None,
    roster: Path | None = None,
) -> list[Result]:
    """Grade every student folder in `submissions` and write gradebook, pages and exports to `out`.

    What was graded before under the same conditions and has not changed keeps its result, so that a run that was
    interrupted goes on where it stopped.

    Args:
        seed: decides the inputs of all checks; None takes that of the run that stands in `out`, else a fresh one.
        jobs: hand-ins run at a time.
        timeout: seconds one cell may take.
        fresh: forget what stands in `out`.
        regrade: run the students whose names match this pattern again, though nothing changed.
        roster: CSV file that says who is who on the learning platform.

    Raises:
        GradeError: there is nothing to grade, or the reference fails on this machine.
        KeyboardInterrupt: interrupted; what was done is written, and the message says how to go on.
    """
    if jobs < 1 or timeout <= 0:
        raise GradeError("--jobs must be at least 1 and --timeout more than 0 seconds.")
    exercises = [source for source in sources() if source.graded]
    if not exercises:
        raise GradeError(NO_SOURCES)
    hand_ins = _hand_ins(submissions, exercises)
    if regrade and not any(fnmatch.fnmatchcase(hand_in.student, regrade) for hand_in in hand_ins):
        raise GradeError(f"No student's name matches --regrade {regrade!r}.")
    console = Console()
    try:
        people = read_roster(roster) if roster else {}
        with open_store(out, submissions) as store:
            drawn = store.seed(seed, fresh)
            bubblewrap = find_bubblewrap()
            conditions = Conditions(drawn, course_version(), float(timeout), sandbox=bubblewrap is not None)
            changes = store.begin(conditions)
            if changes:
                console.print(f"Everything is run again: {', '.join(changes)}.", markup=False, soft_wrap=True)
            if bubblewrap is None:
                console.print(NO_SANDBOX, soft_wrap=True)
            report = Report(out, conditions, len(hand_ins), people)
            with tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True) as copy:
                sandbox = Sandbox(probes_only(Path(copy)), bubblewrap, MEMORY)
                results = _results(hand_ins, store, report, jobs, regrade, sandbox, console)
    except (RosterError, StoreError) as error:
        raise GradeError(str(error)) from None
    console.print(_summary(results))
    console.print(
        f"{out / 'class.html'} sums up, {out / 'gradebook.csv'} has all points, {out / 'feedback'} a page a student "
        f"(seed {drawn}).",
        markup=False,
        soft_wrap=True,
    )
    strangers = sorted({r.student for r in results} - people.keys()) if people else []
    if strangers:
        console.print(f"Not in the roster, so not in moodle.csv: {', '.join(strangers)}", markup=False, soft_wrap=True)
    return results


def _results(
    hand_ins: list[HandIn],
    store: Store,
    report: Report,
    jobs: int,
    regrade: str | None,
    sandbox: Sandbox,
    console: Console,
) -> list[Result]:
    """Return the results of all hand-ins, in order: those that stand, and those of what has to run."""
    conditions = report.conditions
    results: list[Result | None] = []
    for hand_in in hand_ins:
        again = regrade is not None and fnmatch.fnmatchcase(hand_in.student, regrade)
        if hand_in.problem:
            results.append(not_run(hand_in))
        else:
            results.append(None if again else store.get(hand_in, conditions))
    to_run = [i for i, result in enumerate(results) if result is None]
    stand = sum(1 for i, result in enumerate(results) if result and not hand_ins[i].problem)
    if stand:
        console.print(f"{stand} hand-ins have not changed and keep their results; {len(to_run)} are to be run.")

    def one(hand_in: HandIn) -> tuple[Result, bool]:
        """Grade one hand-in; say as well whether its result is to be kept."""
        live.begin(hand_in.student, hand_in.source.exercise)
        try:
            run = run_hand_in(hand_in, conditions.seed, conditions.timeout, sandbox)
            return grade_run(hand_in, run, expected[hand_in.source.name]), True
        except Exception as error:  # whatever is in a hand-in, the others get their grades
            hand_in.problem = ("needs review", f"It could not be graded: {type(error).__name__}: {error}"[:200])
            return not_run(hand_in), False

    pool = ThreadPoolExecutor(jobs)
    references: dict[str, Future[dict[str, dict[str, Evidence]]]] = {}
    futures: dict[Future[tuple[Result, bool]], int] = {}
    try:
        needed = {hand_ins[i].source.name: hand_ins[i].source for i in to_run}
        references = {name: pool.submit(_expected, source, conditions, sandbox) for name, source in needed.items()}
        if references:
            console.print("The reference answers run first: a minute or two.")
        expected = {name: future.result() for name, future in references.items()}
        with Live(console, len(hand_ins) - len(to_run), len(hand_ins)) as live:
            futures = {pool.submit(one, hand_ins[i]): i for i in to_run}
            for future in as_completed(futures):
                i = futures[future]
                result, keep = future.result()
                if keep:
                    store.put(hand_ins[i], conditions, result)
                results[i] = result
                report.update([r for r in results if r], result.student)
                live.end(result)
    except BaseException as error:
        _stop(pool, [*references.values(), *futures])
        if isinstance(error, KeyboardInterrupt):
            done = [r for r in results if r]
            report.write(done)
            raise KeyboardInterrupt(
                f"Interrupted; {len(done)} of {len(hand_ins)} hand-ins are graded and written. "
                "The same command (without --fresh) goes on from there."
            ) from None
        raise
    pool.shutdown()
    found = [r for r in results if r]
    report.write(found)
    return found


def _stop(pool: ThreadPoolExecutor, futures: Iterable[Future]) -> None:
    """End what runs, without waiting for hand-ins to come to their end. Their results are not kept."""
    pool.shutdown(wait=False, cancel_futures=True)
    while wait(futures, timeout=0.2).not_done:
        end_descendants(psutil.Process())


def _summary(results: list[Result]) -> Table:
    table = Table("student", "exercise", "points", "status", "reason", title="Gradebook")
    for r in results:
        row = (r.student, r.exercise, f"{r.total}/{r.maximum}", r.status, r.reason)
        table.add_row(*map(Text, row))  # Text: a student's words are no markup
    return table
