"""How far a run is: a bar on a terminal, elsewhere a line for each submission."""

import math
import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..judge.result import Result


class Live:
    """Shows submissions as they begin and end. Use it with `with`.

    Args:
        done: submissions that need no run.
    """

    def __init__(self, console: Console, done: int, total: int) -> None:
        self._console, self._done, self._total = console, done, total
        self._began, self._at_first = 0.0, done
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task("", total=total, completed=done)

    def __enter__(self) -> "Live":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def begin(self, student: str, exercise: str) -> None:
        """Show which submission is running now. Called from any thread."""
        self._began = self._began or time.perf_counter()  # what comes before the first one is done once
        if self._bar:
            self._bar.update(self._task, description=escape(f"{student} {exercise}"))

    def end(self, result: Result) -> None:
        """Show what became of a submission."""
        self._done += 1
        if self._bar:
            self._bar.advance(self._task)
            return
        line = f"[{self._done}/{self._total}] {result.student} {result.exercise}: "
        line += f"{result.total} of {result.maximum}, {result.status}"
        left = self._total - self._done
        if left:
            seconds = (time.perf_counter() - self._began) / (self._done - self._at_first) * left
            line += f"; about {duration(seconds)} left"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Return a time to wait, rounded up: "40 s", "3 min".

    >>> duration(33), duration(95)
    ('40 s', '2 min')
    """
    return f"{math.ceil(max(seconds, 1) / 10) * 10} s" if seconds <= 60 else f"{math.ceil(seconds / 60)} min"
