"""What runs inside a rank: a process that `run_ranks` has started.

The main thread does the work. A second thread listens to the notebook: it answers where the main thread is, and ends
the process when the notebook has gone. Whatever the rank prints, returns or raises goes to the notebook over one pipe,
message by message:

    rank -> notebook    ("ready", device)  ("line", text)  ("position", frames, collectives)
                        ("result", pickle, peak bytes, seconds)  ("error", frames, message)
    notebook -> rank    "position"  "leave"
"""

import contextlib
import importlib
import io
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from ..core import environment
from ..core.device import rank_device, synchronize
from ..meter.recorder import MemoryMeter
from .called import collectives_called, note_reduce_scatters

# What most work imports sooner or later, and slowly: the profiler, with which memory is measured, needs the compiler.
IMPORTS = ["torch._inductor.config", "torch._dynamo", "torch.distributed.fsdp"]
Frame = tuple[str, int, str]  # file, line, function: the lines of notebook cells are known to the notebook alone


@dataclass(frozen=True)
class Task:
    """What a rank has to do.

    Attributes:
        work: the function and its arguments, pickled with cloudpickle.
        environment: variables that say who the rank is; the names are those that `torchrun` sets.
        threads: how many threads its operations may use.
        folder: of this run: ranks find each other through a file in it, and native code prints to another.
        process_group: whether to open the default process group before the work begins.
        measure: whether to measure the peak memory of the work.
    """

    work: bytes
    environment: dict[str, str]
    threads: int
    folder: str
    process_group: bool
    measure: bool


class _LineStream(io.TextIOBase):
    """A standard output that sends whole lines to the notebook."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send, self._rest = send, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._send(line)
        return len(text)

    def finish(self) -> None:
        """Send the last line, if it has no end."""
        if self._rest:
            self._send(self._rest)
            self._rest = ""


class _Worker:
    """One rank: does its task and talks to the notebook."""

    def __init__(self, task: Task, pipe: Connection) -> None:
        self._task, self._pipe = task, pipe
        self._sending = threading.Lock()
        self._may_leave = threading.Event()
        self._main = threading.get_ident()
        self._depth = 0  # frames of this file at the bottom of the main thread's stack
        self._own = 0  # collectives that this file has called

    def send(self, kind: str, *content: Any) -> None:
        with self._sending, contextlib.suppress(OSError):  # the notebook may have gone
            self._pipe.send((kind, *content))

    def listen(self) -> None:
        """Answer the notebook until it hangs up."""
        try:
            while True:
                match self._pipe.recv():
                    case "position":
                        frame = sys._current_frames().get(self._main)
                        stack = traceback.extract_stack(frame) if frame else []
                        self.send("position", _frames(stack)[self._depth :], collectives_called()[self._own :])
                    case "leave":
                        self._may_leave.set()
        except (EOFError, OSError):
            _end_process_group()

    def run(self) -> None:
        """Do the work and report; stay until all ranks are done, since peers may still be talking to this one."""
        self._depth = len(traceback.extract_stack()) + 1
        stream = sys.stdout = sys.stderr = _LineStream(lambda line: self.send("line", line))
        try:
            result, peak, seconds = self._work()
            stream.finish()
            self.send("result", cloudpickle.dumps(result), peak, seconds)
        except BaseException as error:  # SystemExit, too: nobody else would report it
            stream.finish()
            message = "".join(traceback.format_exception_only(error)).strip()
            self.send("error", _frames(traceback.extract_tb(error.__traceback__))[2:], message)
        self._may_leave.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
        if rank_device().type == "cpu":
            os._exit(0)  # gloo's threads sometimes abort an ordinary exit

    def _work(self) -> tuple[Any, int, float]:
        torch.set_num_threads(self._task.threads)
        device = rank_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        for module in IMPORTS:  # costs nothing where the rank was forked from a server that has done it
            importlib.import_module(module)
        if self._task.process_group:
            rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            store = dist.FileStore(str(Path(self._task.folder) / "store"), world_size)
            who = {"store": store, "rank": rank, "world_size": world_size}
            if device.type == "cuda":
                dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device, **who)
            else:
                dist.init_process_group("gloo", **who)
            dist.barrier()
            self._own = len(collectives_called())
        function, args = cloudpickle.loads(self._task.work)
        self.send("ready", device.type)
        meter = MemoryMeter(device=device, by_category=False) if self._task.measure else None
        with meter or contextlib.nullcontext():
            start = time.perf_counter()
            result = function(*args)
            synchronize(device)
            seconds = time.perf_counter() - start
        return result, meter.profile.peak_bytes if meter else 0, seconds


def _frames(stack: "traceback.StackSummary | list[traceback.FrameSummary]") -> list[Frame]:
    return [(frame.filename, frame.lineno or 0, frame.name) for frame in stack]


def _end_process_group() -> None:
    """End this process and those it has started."""
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _keep_groups() -> None:
    """Let no process group of gloo be freed before the process ends.

    While PyTorch (2.13) frees one, it waits for gloo's threads and holds Python's lock, which a thread that is
    releasing a finished collective needs as well. After a backward pass that is a deadlock in about 1 of 50 ranks.
    """
    groups: list[dist.ProcessGroup] = []
    destroy = dist.destroy_process_group

    def destroy_process_group(group: dist.ProcessGroup | None = None) -> None:
        groups.extend(dist.distributed_c10d._world.pg_map)
        destroy(group)

    for module in (dist, dist.distributed_c10d):
        module.destroy_process_group = destroy_process_group


def main(task: Task, pipe: Connection) -> None:
    """Be a rank. It leads a process group of its own, so that what it starts can be ended with it."""
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the notebook handles an interrupt: it ends the ranks
    os.environ.update(task.environment)
    log = os.open(Path(task.folder) / f"rank{task.environment['RANK']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if rank_device().type == "cpu":
        _keep_groups()
        note_reduce_scatters()
    environment.quiet_loggers()  # the server has imported PyTorch since helpers did it
    worker = _Worker(task, pipe)
    threading.Thread(target=worker.listen, daemon=True).start()
    worker.run()
