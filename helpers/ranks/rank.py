"""A rank as the notebook sees it: a process, and a pipe over which it says what it does.

What travels over the pipe is in `worker.py`. A rank that has died closes its end, so its death is read like a message.
"""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ..core.fresh_process import CONTEXT, start_process
from .worker import IMPORTS, Frame, Task, main

GRACE = 1.0  # seconds for a rank to answer when another one has failed
LEAVE = 20.0  # seconds for a rank to end by itself; NCCL takes a few to close its connections
TRANSPORT = "gloo_tcp_loop"  # the name of gloo's threads that send and receive
PRELOAD = [main.__module__, *IMPORTS]  # what the server imports once for all ranks


@dataclass
class Rank:
    """One process of a run.

    Attributes:
        lines: what it has printed.
        device: where it works, "cuda" or "cpu"; "" until it has found the others and begun the work.
        outcome: ("result", result, peak bytes, seconds), ("error", frames, message) or ("died", exit code).
        position: the stack of its main thread, and the collectives it has called; None until it has answered.
    """

    number: int
    process: BaseProcess
    pipe: connection.Connection
    log: Path
    lines: list[str] = field(default_factory=list)
    device: str = ""
    outcome: tuple[Any, ...] | None = None
    position: tuple[list[Frame], list[str]] | None = None

    @classmethod
    def start(cls, number: int, task: Task) -> "Rank":
        """Start the process."""
        pipe, other_end = CONTEXT.Pipe()
        process = start_process(main, (task, other_end), PRELOAD, f"rank {number}")
        other_end.close()
        return cls(number, process, pipe, Path(task.folder) / f"rank{number}.log")

    @property
    def kind(self) -> str:
        """How it ended: "result", "error" or "died"; "" while it is at work."""
        return self.outcome[0] if self.outcome else ""

    def read(self) -> None:
        """Take one message."""
        try:
            kind, *content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(GRACE)
            self.outcome = self.outcome or ("died", self.process.exitcode)
            return
        if kind == "ready":
            self.device = content[0]
        elif kind == "line":
            self.lines.append(content[0])
        elif kind == "position":
            self.position = tuple(content)
        else:
            self.outcome = (kind, *content)

    @property
    def cpu_seconds(self) -> float:
        """Return the processor time that it has taken; 0 where the system does not tell (it is Linux that does).

        Gloo's transport is left out. It computes nothing, but its thread spins while a message waits for a tensor that
        has been freed, so a rank that hangs would look as if it were working.
        """
        process = Path(f"/proc/{self.process.pid}")
        threads = [_name_and_seconds(each / "stat") for each in process.glob("task/*")]
        transport = sum(seconds for name, seconds in threads if name == TRANSPORT)
        return max(0.0, _name_and_seconds(process / "stat")[1] - transport)

    def end(self) -> None:
        """End the process, and those it has started."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _name_and_seconds(stat: Path) -> tuple[str, float]:
    """Return a process's or a thread's name and processor time, ("", 0.0) where the system does not tell."""
    try:
        name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
        user, system = fields.split()[11:13]
        return name, (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return "", 0.0


def read_messages(ranks: Sequence[Rank], seconds: float = 0.2) -> None:
    """Take the messages that have arrived, or wait up to `seconds` for one."""
    open_pipes = {rank.pipe: rank for rank in ranks if rank.kind != "died"}
    for pipe in connection.wait(list(open_pipes), seconds):
        open_pipes[pipe].read()


def ask_positions(ranks: Sequence[Rank]) -> None:
    """Ask the ranks that live what they are doing, and wait a moment for the answers."""
    asked = [rank for rank in ranks if rank.kind != "died"]
    for rank in asked:
        with contextlib.suppress(OSError):
            rank.pipe.send("position")
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline and not all(rank.position or rank.kind == "died" for rank in asked):
        read_messages(ranks)
