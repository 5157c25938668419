"""What is left of a rank after a job: its exit code, its collectives with their times, checksums of its weights.

A `RankLogWriter` writes them down while the rank works, a line at a time, so that a kill loses nothing; `read_logs`
reads the logs of all ranks. A flight recorder keeps the same about collectives, without times over gloo.
"""

import contextlib
import json
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch


@dataclass(frozen=True)
class Call:
    """A collective: when the rank called it, and when it came back; None if it never did.

    Times are seconds since the job was started.
    """

    name: str
    asked: float
    answered: float | None


@dataclass
class RankLog:
    """The log of one rank.

    Attributes:
        exit_code: 0: went well; 1: an error was raised; -9: killed by signal 9 (SIGKILL); -15: told to stop by
            `torchrun` (SIGTERM), because of another rank.
        calls: its collectives, in order.
        checksums: of its weights, after each step.
    """

    exit_code: int
    calls: list[Call] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)


class RankLogWriter:
    """Writes down what a rank does, in `folder`."""

    def __init__(self, folder: str | Path, rank: int, attempt: int = 0) -> None:
        self._file = Path(folder, f"attempt-{attempt}-rank-{rank}.jsonl").open("a", encoding="utf-8")  # noqa: SIM115

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """Note when the block begins, and when it ends."""
        self._write("asked", name)
        yield
        self._write("answered", name)

    def note(self, what: str, value: int) -> None:
        """Note a number, such as a checksum."""
        self._write(what, value)

    def _write(self, what: str, value: str | int) -> None:
        self._file.write(json.dumps([what, value, time.time()]) + "\n")
        self._file.flush()


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """Return a CRC-32 of the tensors' bytes: it differs if a single bit differs."""
    value = 0
    for tensor in tensors:
        value = zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), value)
    return value


def read_logs(folder: str | Path, exit_codes: Mapping[int, int], attempt: int = 0) -> list[RankLog]:
    """Return the logs that the ranks of one attempt wrote, in rank order."""
    lines = {rank: _lines(Path(folder, f"attempt-{attempt}-rank-{rank}.jsonl")) for rank in sorted(exit_codes)}
    start = min((line[2] for mine in lines.values() for line in mine), default=0.0)
    logs = []
    for rank, mine in lines.items():
        log = RankLog(exit_codes[rank])
        for what, value, when in mine:
            if what == "asked":
                log.calls.append(Call(value, when - start, None))
            elif what == "answered":
                log.calls[-1] = Call(value, log.calls[-1].asked, when - start)
            elif what == "checksum":
                log.checksums.append(value)
        logs.append(log)
    return logs


def _lines(path: Path) -> list[list]:
    """Return the whole lines of a log; a kill may have cut the last one."""
    found = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found
