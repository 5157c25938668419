"""Real ranks from a notebook cell.

>>> run = run_ranks(fn, 2, data)  # doctest: +SKIP
>>> run.results[1], run.peak_bytes[1]  # doctest: +SKIP

Each rank is a process of its own with a process group open: NCCL where there is a GPU for each rank, else gloo on the
CPU. The collectives, the deadlocks and the bytes are those of a cluster; only the speed is not.

Functions defined in a cell are carried over by cloudpickle. Ranks find each other through a file of this run, so no two
runs can meet on one port, and no name server is asked. On Linux ranks are forked from a server that
has imported PyTorch and done nothing else, which takes milliseconds; elsewhere they start afresh.
"""

import contextlib
import linecache
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from ..core.files import PACKAGE
from ..core.fresh_process import CONTEXT, start_process
from ..core.notebook import in_notebook
from ..core.units import human_bytes
from .worker import IMPORTED, Frame, Orders, main

START_LIMIT = 120.0  # seconds for processes to start and to find each other, on a slow machine
GRACE = 1.0  # seconds for the other ranks to say where they stand when one has failed
PRELOADED = [main.__module__, *IMPORTED]  # what the server imports once for all ranks
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
_HERE = str(PACKAGE)


class RankError(RuntimeError):
    """A rank raised, died, or did not come back in time; the message says which, where, and what the others did.

    Attributes:
        raised: the name of the exception that a rank raised, "" if none did.
    """

    def __init__(self, message: str, raised: str = "") -> None:
        super().__init__(message)
        self.raised = raised


@dataclass(frozen=True)
class RankRun:
    """What came back, each list in rank order.

    Attributes:
        results: what the function returned.
        printed: what each rank printed.
        peak_bytes: each rank's peak memory while the function ran; 0 where it was not measured.
        seconds: how long the function took.
    """

    results: list[Any]
    printed: list[str]
    peak_bytes: list[int]
    seconds: list[float]

    def __str__(self) -> str:
        lines = [f"{'rank':>4}{'peak':>12}{'seconds':>9}"]
        for rank, (peak, seconds) in enumerate(zip(self.peak_bytes, self.seconds, strict=True)):
            lines.append(f"{rank:>4}{human_bytes(peak) if peak else '-':>12}{seconds:>9.2f}")
        return "\n".join(lines)


@dataclass
class _Rank:
    """A rank as the notebook sees it."""

    number: int
    process: Any
    pipe: connection.Connection
    log: Path
    ready: bool = False
    lines: list[str] = field(default_factory=list)
    outcome: tuple[Any, ...] | None = None  # ("result", ...), ("error", ...) or ("died", exit code)
    where: tuple[list[Frame], list[str]] | None = None

    def read(self) -> None:
        """Take one message."""
        try:
            kind, *content = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(GRACE)
            self.outcome = self.outcome or ("died", self.process.exitcode)
            return
        if kind == "ready":
            self.ready = True
        elif kind == "line":
            self.lines.append(content[0])
        elif kind == "where":
            self.where = tuple(content)
        else:
            self.outcome = (kind, *content)

    def end(self) -> None:
        """End the process, and those it has started."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()
        self.pipe.close()


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 60.0,
    measure: bool = True,
    process_group: bool = True,
    show: bool = True,
) -> RankRun:
    """Call `fn(*args)` in `world_size` processes at once and return what each made of it.

    Args:
        fn: the work of one rank. `dist.get_rank()` says which; `rank_device()` where. It may be defined in a cell.
        world_size: number of ranks.
        args: handed to every rank; each gets its own copy.
        timeout: seconds that `fn` may take, start-up not counted.
        measure: measure each rank's peak memory. False when `fn` measures itself, or is timed.
        show: show what ranks print, live and at the end.
        process_group: False leaves it to `fn` to open (and close) the process group; the environment says with whom.

    Raises:
        RankError: a rank raised, died or took too long. All ranks have been ended then.
        ValueError: `world_size` is below 1.
    """
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; at least one rank is needed.")
    # A store on a port that the system chose, for work that opens its own group as it would under torchrun.
    store = None if process_group else dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    work = cloudpickle.dumps((fn, args))
    ranks: list[_Rank] = []
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        try:
            for number in range(world_size):
                environment = _environment(number, world_size, store.port if store else 0)
                threads = max(1, torch.get_num_threads() // world_size)
                ranks.append(_start(number, Orders(environment, threads, process_group, measure, work, folder)))
            _watch(ranks, timeout, show)
            for rank in ranks:
                rank.pipe.send("leave")
            for rank in ranks:
                rank.process.join(GRACE)
        finally:  # also when the kernel is interrupted
            for rank in ranks:
                rank.end()
    _, results, peaks, seconds = zip(*(rank.outcome for rank in ranks), strict=True)
    printed = ["\n".join(rank.lines) for rank in ranks]
    return RankRun([cloudpickle.loads(result) for result in results], printed, list(peaks), list(seconds))


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the variables that `torchrun` would set, so that one function runs under both."""
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already
        "TORCH_FR_BUFFER_SIZE": "2000",  # collectives that the flight recorder remembers
        "RES_OPTIONS": "timeout:1 attempts:1",  # a TCP store asks the name server who 127.0.0.1 is, which may be deaf
    }
    if sys.platform in LOOPBACK:
        variables["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    return variables


def _start(number: int, orders: Orders) -> _Rank:
    ours, theirs = CONTEXT.Pipe()
    process = start_process(main, (orders, theirs), PRELOADED, f"rank {number}")
    theirs.close()
    return _Rank(number, process, ours, Path(orders.folder) / f"rank{number}.log")


def _watch(ranks: list[_Rank], timeout: float, show: bool) -> None:
    """Read what ranks send until all have their result."""
    screen = _Screen(ranks if show else [])
    deadline, all_ready = time.monotonic() + START_LIMIT, False
    while not all(rank.outcome for rank in ranks):
        _read(ranks)
        screen.update()
        if not all_ready and all(rank.ready for rank in ranks):
            all_ready, deadline = True, time.monotonic() + timeout
        failed = any(rank.outcome and rank.outcome[0] != "result" for rank in ranks)
        if failed or time.monotonic() > deadline:
            _ask_where(ranks)
            screen.finish()
            raise _failure(ranks) or _overdue(ranks, timeout if all_ready else START_LIMIT)
    screen.finish()
    failure = _failure(ranks)
    if failure:
        raise failure


def _read(ranks: list[_Rank], seconds: float = 0.2) -> None:
    """Take the messages that are there, or wait for one."""
    talking = {rank.pipe: rank for rank in ranks if not (rank.outcome and rank.outcome[0] == "died")}
    for pipe in connection.wait(list(talking), seconds):
        talking[pipe].read()


def _ask_where(ranks: list[_Rank]) -> None:
    """Ask the ranks that live where they stand, and wait a moment for the answers."""
    asked = [rank for rank in ranks if not (rank.outcome and rank.outcome[0] == "died")]
    for rank in asked:
        with contextlib.suppress(OSError):
            rank.pipe.send("where")
    until = time.monotonic() + GRACE
    while time.monotonic() < until and not all(
        rank.where or (rank.outcome and rank.outcome[0] == "died") for rank in asked
    ):
        _read(ranks)


def _failure(ranks: list[_Rank]) -> RankError | None:
    """Say which rank failed, with its own traceback; None when none has."""
    died = [rank for rank in ranks if rank.outcome and rank.outcome[0] == "died"]
    raised = [rank for rank in ranks if rank.outcome and rank.outcome[0] == "error"]
    for rank in died:
        said = rank.log.read_text(errors="replace").strip().splitlines()[-10:] if rank.log.exists() else []
        text = f"rank {rank.number} died (exit code {rank.outcome[1]})"
        return RankError("\n".join([text, *said, *_others(ranks, rank)]))
    for rank in raised:
        _, frames, what = rank.outcome
        theirs = [frame for frame in frames if not frame[0].startswith(_HERE)]  # the course's own are left out
        text = f"rank {rank.number} raised {what}\n{_lines(theirs or frames)}"
        return RankError("\n".join([text, *_others(ranks, rank)]), what.partition(":")[0])
    return None


def _overdue(ranks: list[_Rank], limit: float) -> RankError:
    late = [str(rank.number) for rank in ranks if not rank.outcome]
    who = f"rank {late[0]} has" if len(late) == 1 else f"ranks {', '.join(late)} have"
    return RankError("\n".join([f"{who} not come back within {limit:g} s", *_others(ranks, None)]))


def _others(ranks: list[_Rank], cause: _Rank | None) -> list[str]:
    """Return what each rank but `cause` was doing, a line or a few each."""
    return [f"rank {rank.number}: {_doing(rank)}" for rank in ranks if rank is not cause]


def _doing(rank: _Rank) -> str:
    frames, begun = rank.where or ([], [])
    so_far = f"; it has begun {len(begun)} collectives, the last one {begun[-1]}" if begun else ""
    if rank.outcome:
        kind = rank.outcome[0]
        return {"result": f"had finished{so_far}", "died": "died as well"}.get(kind) or f"raised {rank.outcome[2]}"
    if not rank.where:
        return "did not answer: busy in native code, or not started yet"
    ours = [i for i, frame in enumerate(frames) if "site-packages" not in frame[0] and not frame[0].startswith(_HERE)]
    at = ours[-1] if ours else len(frames) - 1
    inside = [f[2] for f in frames if f"torch{os.sep}distributed" in f[0] and not f[2].startswith(("_", "wrapper"))]
    called = inside[-1:] or [frame[2] for frame in frames[at + 1 :] if not frame[2].startswith("_")][:1]
    text = f"in {called[0]}" if called else "at work"
    return f"{text}{so_far}\n{_lines(frames[at : at + 1])}"


def _lines(frames: list[Frame]) -> str:
    """Format a stack; the source of notebook cells is known here and not in the rank."""
    linecache.checkcache()
    return "".join(traceback.StackSummary.from_list([(*frame, None) for frame in frames]).format()).rstrip()


class _Screen:
    """Shows what ranks print: in a notebook live, the last line of each; at the end all lines in rank order."""

    def __init__(self, ranks: list[_Rank]) -> None:
        self._ranks, self._handle, self._shown = ranks, None, ""

    def update(self) -> None:
        """Show the last line of each rank."""
        if in_notebook() and any(rank.lines for rank in self._ranks):
            self._show("\n".join(f"[rank {r.number}] {r.lines[-1] if r.lines else '...'}" for r in self._ranks))

    def finish(self) -> None:
        """Show all lines."""
        text = "\n".join(f"[rank {rank.number}] {line}" for rank in self._ranks for line in rank.lines)
        if text and in_notebook():
            self._show(text)
        elif text:
            print(text)

    def _show(self, text: str) -> None:
        if text == self._shown:
            return
        from IPython.display import display

        data, self._shown = {"text/plain": text}, text
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
