"""What there is to run: every lab's source as a plain script, and the measurements that no lab makes."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from ...core.files import ROOT


class Skip(Exception):
    """This machine lacks what a measurement needs; the message says what."""


@dataclass(frozen=True)
class Step:
    """One file to run in a process of its own.

    Attributes:
        path: a lab's source, or a module with a function `measure(claims, device)`.
        lab: which of the two.
    """

    path: Path
    lab: bool

    @property
    def name(self) -> str:
        """Its name in the receipt: a measurement's own, or "labs/" and a lab's topic, whatever its number is today."""
        topic = re.sub(r"^[0-9]+[a-z]?_", "", self.path.stem)
        return f"labs/{topic}" if self.lab else topic

    @property
    def exercise(self) -> bool:
        """Whether it is a graded exercise."""
        return re.match(r"labs/x\d_", self.name) is not None

    @property
    def files(self) -> tuple[Path, ...]:
        """What it runs: its own file, and for a measurement what the measurements share."""
        return (self.path,) if self.lab else (self.path, *sorted(self.path.parent.glob("_[a-z]*.py")))

    @property
    def digest(self) -> str:
        """What tells whether it has changed since it was run."""
        return hashlib.sha256(b"".join(file.read_bytes() for file in self.files)).hexdigest()[:16]


def steps() -> list[Step]:
    """Return all steps of the checkout: the measurements, then the labs in order."""
    measurements = sorted((Path(__file__).parent / "measurements").glob("[a-z]*.py"))
    labs = sorted((ROOT / "solutions").glob("[0-9][0-9]*_*.py"))
    return [Step(path, lab=False) for path in measurements] + [Step(path, lab=True) for path in labs]
