"""What all results of a run have in common: a result stands only while these conditions hold."""

import hashlib
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ....core.files import ROOT


@dataclass(frozen=True)
class Conditions:
    """What a grade depends on, apart from the answers.

    Attributes:
        seed: of the random numbers that the checks' inputs are drawn with.
        course: the course's version, see `course_version`.
        timeout: seconds a cell may take.
        sandbox: whether submissions run in a sandbox.
    """

    seed: int
    course: str
    timeout: float
    sandbox: bool

    def changes_since(self, before: dict[str, Any]) -> list[str]:
        """Say what differs from `before`, such as "the seed is 2, was 1"."""
        names = {"seed": "the seed", "course": "the course's version", "timeout": "--timeout", "sandbox": "the sandbox"}
        return [
            f"{names[key]} is {_word(now)}, was {_word(before.get(key))}"
            for key, now in asdict(self).items()
            if before.get(key) != now
        ]


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def course_version(root: Path = ROOT) -> str:
    """Return the version of the course: the package's, and a digest of all sources that a grade can depend on.

    These are the labs' sources in `solutions` and the package itself: exercises and checks use its models and meters.
    """
    digest = hashlib.sha256()
    for path in sorted([*(root / "solutions").glob("*.py"), *(root / "helpers").rglob("*.py")]):
        text = path.read_bytes().replace(b"\r\n", b"\n")  # a checkout on Windows is the same course
        for part in (path.relative_to(root).as_posix().encode(), text):
            digest.update(b"%d " % len(part) + part)
    try:
        number = version("training-at-scale")
    except PackageNotFoundError:
        number = "0"
    return f"{number}+{digest.hexdigest()[:8]}"
