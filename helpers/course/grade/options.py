"""What an instructor can choose when grading."""

import fnmatch
from dataclasses import dataclass
from pathlib import Path


class GradeError(Exception):
    """Grading cannot begin. The message says what to change."""


@dataclass(frozen=True)
class GradingOptions:
    """How a class is graded.

    Attributes:
        seed: decides the inputs of all checks; None takes that of the run in the output folder, else a fresh one.
        jobs: hand-ins that run at a time.
        timeout: seconds one cell may take.
        fresh: forget the results in the output folder.
        regrade: run the students whose names match this pattern again, even if nothing has changed.
        roster: CSV file that says who is who on the learning platform.

    Raises:
        GradeError: a number is out of range.
    """

    seed: int | None = None
    jobs: int = 1
    timeout: float = 120
    fresh: bool = False
    regrade: str | None = None
    roster: Path | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1 or self.timeout <= 0:
            raise GradeError("--jobs must be at least 1 and --timeout more than 0 seconds.")

    def regrades(self, student: str) -> bool:
        """Say whether the hand-ins of `student` are to be run again in any case."""
        return self.regrade is not None and fnmatch.fnmatchcase(student, self.regrade)
