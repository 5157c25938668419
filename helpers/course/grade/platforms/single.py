"""Grade the one submission that a platform has put into a folder."""

import shutil
import tempfile
from pathlib import Path

from ...build.source import NO_SOURCES, Source, sources
from ..bench import Bench
from ..intake.collect import collect
from ..judge.result import Result, not_run
from ..options import GradeError
from ..run.warm import WarmServers
from ..store.conditions import Conditions, course_version

NAME = "submission"


def exercise_source(exercise: str) -> Source:
    """Return the source of an exercise, such as "x2".

    Raises:
        GradeError: there is no such exercise here.
    """
    graded = {source.exercise: source for source in sources() if source.graded}
    if not graded:
        raise GradeError(NO_SOURCES)
    if exercise not in graded:
        raise GradeError(f"There is no exercise {exercise!r}. The exercises are {', '.join(graded)}.")
    return graded[exercise]


def grade_single(folder: Path, exercise: str, seed: int, timeout: float) -> Result:
    """Return the result of what lies in `folder`. A submission that cannot be read has one, too.

    Raises:
        GradeError: there is no such exercise, or its reference fails on this machine.
    """
    source = exercise_source(exercise)
    with tempfile.TemporaryDirectory(prefix="one-") as students:
        hidden = shutil.ignore_patterns(".git", ".github")
        shutil.copytree(folder, Path(students) / NAME, symlinks=True, ignore=hidden)
        (hand_in,) = collect(Path(students), [source])
    if hand_in.problem:
        return not_run(hand_in)
    with WarmServers() as servers:
        conditions = Conditions(seed, course_version(), timeout, bool(servers.bubblewrap))
        return Bench(conditions, servers).grade(hand_in)
