"""What all results of a run have in common: a result stands only while these conditions hold."""

import hashlib
import os
import platform
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ....core.device import device_name
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
def machine() -> list[str]:
    """Return what the figures of a reference depend on, apart from the course: the processor, Python and packages."""
    packages = []
    for name in ("torch", "numpy"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"{name} unknown")
    threads = [os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")]
    return [
        device_name(torch.device("cpu")),
        str(os.cpu_count()),
        platform.platform(),
        platform.python_version(),
        *packages,
        *threads,
    ]


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
