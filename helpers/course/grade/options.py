"""What an instructor can choose when grading."""

import fnmatch
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..build.source import NO_SOURCES, Source, sources
from .intake.hand_in import HandIn


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class GradeError(Exception):
    """Grading cannot begin. The message says what to change."""


def graded_sources() -> list[Source]:
    """Return the graded exercises of the checkout.

    Raises:
        GradeError: there are none, because only the package is installed.
    """
    found = [source for source in sources() if source.graded]
    if not found:
        raise GradeError(NO_SOURCES)
    return found


@dataclass(frozen=True)
class GradingOptions:
    """How a class is graded.

    Attributes:
        exercise: names of the exercises that were set, such as "x1"; if empty, those that a student has submitted.
        seed: decides the inputs of all checks; None takes that of the run in the output folder, else a fresh one.
        jobs: submissions that run at a time; by default one for each core that this process may use.
        slice: (i, n): grade the i-th of n parts of the class, as each of n machines does with its own folder. With all
            results copied into one folder, a run without it writes the gradebook of the whole class.
        timeout: seconds one cell may take.
        fresh: forget the results in the output folder.
        regrade: run the students whose names match this pattern again, even if nothing has changed.
        roster: CSV file that says who is who on the learning platform.
        policy: TOML file that says what checks are worth.
        anonymous: call students by names drawn by chance, in all that people read.
        email: address that letters to the students of the roster come from; None writes none.
        watch: grade again whenever something has come, until interrupted.

    Raises:
        GradeError: a number is out of range.
    """

    exercise: Sequence[str] = ()
    seed: int | None = None
    jobs: int = field(default_factory=cores)
    slice: tuple[int, int] = (1, 1)
    timeout: float = 120
    fresh: bool = False
    regrade: str | None = None
    roster: Path | None = None
    policy: Path | None = None
    anonymous: bool = False
    email: str | None = None
    watch: bool = False

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.timeout <= 0:
            raise GradeError("--jobs must be at least 1 and --timeout more than 0 seconds.")
        number, parts = self.slice
        if not 1 <= number <= parts:
            raise GradeError(f"--slice takes I/N with I from 1 to N, such as 2/4; got {number}/{parts}.")
        if parts > 1 and self.seed is None:
            raise GradeError("--slice needs --seed, the same for all slices: results count only for one seed.")
        if self.email is not None and not (self.roster and re.fullmatch(r"[^@\s]+@[^@\s]+", self.email)):
            raise GradeError("--email is the address of the sender, and needs --roster for the students' addresses.")

    def set_exercises(self, sources: Sequence[Source]) -> list[Source]:
        """Return the exercises that can have been set, in the order of their names.

        Raises:
            GradeError: the course does not have one of those that were named.
        """
        known = {source.exercise: source for source in sorted(sources, key=lambda source: source.exercise)}
        unknown = [name for name in self.exercise if name.lower() not in known]
        if unknown:
            raise GradeError(f"--exercise: there is no exercise {unknown[0]!r}: choose from {', '.join(known)}.")
        wanted = {name.lower() for name in self.exercise} or set(known)
        return [source for name, source in known.items() if name in wanted]

    def mine(self, hand_ins: Sequence[HandIn]) -> list[HandIn]:
        """Return those of the class that belong to this slice."""
        number, parts = self.slice
        return list(hand_ins[number - 1 :: parts])

    def regrades(self, student: str) -> bool:
        """Say whether the submissions of `student` are to be run again in any case."""
        return self.regrade is not None and fnmatch.fnmatchcase(student, self.regrade)
