"""One run over the submissions of a class: what has a result keeps it, what is left is run, several at a time."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, replace

from rich.console import Console

from .bench import Bench
from .intake.hand_in import HandIn
from .judge.result import Result, not_run
from .options import GradingOptions
from .report.live import Live, duration
from .report.report import Report
from .store.conditions import Conditions
from .store.store import Store
from .workers import Workers


@dataclass(frozen=True)
class ClassRun:
    """Grades the submissions of a class.

    Attributes:
        store: the results of earlier runs; it receives those of this one.
        report: the files for people, written after each submission and at the end.
        bench: where submissions run.
        console: shows how far the run is.
    """

    options: GradingOptions
    store: Store
    report: Report
    bench: Bench
    console: Console

    @property
    def conditions(self) -> Conditions:
        """What all grades of this run depend on."""
        return self.report.conditions

    def grade(self, hand_ins: Sequence[HandIn]) -> list[Result]:
        """Return the results of all submissions, in order.

        Raises:
            GradeError: the reference fails on this machine.
            KeyboardInterrupt: interrupted; the results so far are written, and the message says how to go on.
        """
        results: dict[int, Result] = {}  # by the place of the submission
        for place, hand_in in enumerate(hand_ins):
            result = self._result_without_run(hand_in)
            if result is not None:
                results[place] = result
        unchanged = _graded(hand_ins, results)
        if unchanged:
            rest = len(hand_ins) - len(results)
            said = f"Submissions that have not changed keep their results: {unchanged}. Submissions to run: {rest}."
            self.console.print(said)
        try:
            self._run(hand_ins, results)
        except KeyboardInterrupt:
            self.report.write(_in_order(results))
            done = f"{_graded(hand_ins, results)} of {submitted(hand_ins)}"
            raise KeyboardInterrupt(
                f"Interrupted; {done} submissions are graded and written. "
                "The same command (without --fresh) continues from there."
            ) from None
        self.report.write(_in_order(results))
        return _in_order(results)

    def _result_without_run(self, hand_in: HandIn) -> Result | None:
        """Return the result of a submission that cannot be run, or has not changed; None for all others."""
        if hand_in.problem:
            return not_run(hand_in)
        kept = None if self.options.regrades(hand_in.student) else self.store.get(hand_in, self.conditions)
        return kept and replace(kept, canvas=hand_in.canvas)  # the same answers may have been attached again

    def _run(self, hand_ins: Sequence[HandIn], results: dict[int, Result]) -> None:
        """Run and judge all submissions that have no result, and add theirs to `results` one by one."""
        to_run = {place: hand_in for place, hand_in in enumerate(hand_ins) if place not in results}
        if not to_run:
            return
        graded = _graded(hand_ins, results)
        with Live(self.console, graded, graded + len(to_run)) as live:
            for place, future in self._ended(to_run, live):
                result = self._outcome(hand_ins[place], future)
                results[place] = result
                self.report.update(_in_order(results), result.student)
                live.end(self.report.shown(result))

    def _ended(self, to_run: dict[int, HandIn], live: Live) -> Iterator[tuple[int, Future[Result]]]:
        """Grade several at a time; yield the place and the result of each as it ends."""

        def run(hand_in: HandIn) -> Result:
            live.begin(self.report.name(hand_in.student), hand_in.source.exercise)
            return self.bench.grade(hand_in)

        with Workers(self.options.jobs) as workers:
            missing = self.bench.lacks([hand_in.source for hand_in in to_run.values()])
            if missing:
                names = ", ".join(sorted(source.exercise for source in missing))
                self.console.print(
                    f"The reference answers of {names} run first, which takes a few minutes.", soft_wrap=True
                )
                for reference in [workers.submit(self.bench.expected, source) for source in missing]:
                    reference.result()
                exercises = [hand_in.source.exercise for hand_in in to_run.values()]
                self.console.print(time_needed(exercises, self.bench.seconds, self.options.jobs), highlight=False)
            places = {workers.submit(run, hand_in): place for place, hand_in in to_run.items()}
            for future in as_completed(places):
                yield places[future], future

    def _outcome(self, hand_in: HandIn, future: Future[Result]) -> Result:
        """Return the result of a submission, and store it, unless the grader itself failed on it."""
        try:
            result = future.result()
        except Exception as error:  # whatever is in a submission, the others get their grades
            reason = f"It could not be graded: {type(error).__name__}: {error}"[:200]
            return not_run(replace(hand_in, problem=("needs review", reason)))
        before = self.store.last(hand_in)
        self.store.put(hand_in, self.conditions, result)
        if before:
            self.report.regraded(before, result)
        return result


def time_needed(exercises: Sequence[str], seconds: Mapping[str, float], jobs: int) -> str:
    """Return a sentence about how long some submissions will take.

    Args:
        exercises: that of each submission.
        seconds: how long the reference of each exercise ran: a submission does what the reference does.
        jobs: submissions that run at a time.

    >>> time_needed(["x1", "x1", "x4"], {"x1": 14.2, "x4": 30.0}, 2)
    '3 submissions will take about 30 s: 14 s for each x1 and 30 s for each x4, 2 at a time.'
    """
    at_once = min(jobs, len(exercises))
    each = {name: seconds.get(name, 0.0) for name in sorted(set(exercises))}
    whole = max(sum(each[name] for name in exercises) / at_once, *each.values(), 0.0)
    many = "1 submission" if len(exercises) == 1 else f"{len(exercises)} submissions"
    named = " and ".join(f"{time:.0f} s for each {name}" for name, time in each.items())
    return f"{many} will take about {duration(whole)}: {named}, {at_once} at a time."


def submitted(hand_ins: Sequence[HandIn]) -> int:
    """Return how many of `hand_ins` were handed in at all, readable or not."""
    return sum(hand_in.problem is None or hand_in.problem[0] != "missing" for hand_in in hand_ins)


def _graded(hand_ins: Sequence[HandIn], results: Mapping[int, Result]) -> int:
    """Return how many submissions have been run, now or earlier."""
    return sum(hand_ins[place].problem is None for place in results)


def _in_order(results: dict[int, Result]) -> list[Result]:
    return [results[place] for place in sorted(results)]
