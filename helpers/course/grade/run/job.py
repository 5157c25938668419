"""One submission that is to be run: what, where and for how long."""

from dataclasses import dataclass
from pathlib import Path

from .sandbox import Sandbox


@dataclass(frozen=True)
class Job:
    """What the process that runs nbval is given.

    Attributes:
        folder: a folder of its own, with the notebook in it.
        exercise: that is graded, such as "x1".
        timeout: seconds one cell may take.
        sandbox: where the kernel runs.
    """

    folder: Path
    exercise: str
    timeout: float
    sandbox: Sandbox

    @property
    def kernel(self) -> Path:
        """The folder that the kernel may write to."""
        return self.folder / "k"

    @property
    def door(self) -> Path:
        """The socket at which the doorkeeper of this submission waits for its kernel: see kernel/warm_server.py."""
        return self.kernel / "door"

    @property
    def records(self) -> Path:
        """The file with what the cells did, which the kernel does not see."""
        return self.folder / "records.jsonl"
