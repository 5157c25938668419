"""What the lane has done so far, in a file that is whole at every moment."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ...core.files import atomic_write

DONE, FAILED, SKIPPED, INTERRUPTED = "done", "failed", "skipped", "interrupted"


@dataclass(frozen=True)
class Outcome:
    """How a step ended.

    Attributes:
        status: "done", "failed", "skipped" (a package is missing), or "interrupted" (while it ran).
        words: the last line that it printed, or why it was ended or skipped.
        seconds: how long it ran.
        digest: of the files that it ran.
    """

    status: str
    words: str = ""
    seconds: float = 0.0
    digest: str = ""


@dataclass
class LaneState:
    """The outcomes of one machine.

    Attributes:
        path: the file.
        machine: device and PyTorch; the outcomes of another machine say nothing about this one.
        outcomes: by the name of the step, in the order in which they were run.
    """

    path: Path
    machine: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, machine: str) -> "LaneState":
        """Return what is known of `machine`; nothing if the file is of another one or cannot be read."""
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            known = {name: Outcome(**outcome) for name, outcome in body["outcomes"].items()}
            return cls(path, machine, known if body["machine"] == machine else {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(path, machine)

    def keep(self, name: str, outcome: Outcome) -> None:
        """Write the outcome of a step, in place of an earlier one."""
        self.forget([name])
        self.outcomes[name] = outcome
        body = {"machine": self.machine, "outcomes": {name: asdict(one) for name, one in self.outcomes.items()}}
        atomic_write(self.path, json.dumps(body, indent=1, ensure_ascii=False) + "\n")

    def forget(self, names: Iterable[str]) -> None:
        """Take steps as not run."""
        for name in names:
            self.outcomes.pop(name, None)

    def status(self, name: str, digest: str) -> str:
        """Return the status of a step whose files have `digest`; "" if it has not been run as it is now."""
        outcome = self.outcomes.get(name)
        return outcome.status if outcome and outcome.digest == digest else ""
