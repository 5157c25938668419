"""Processes that a script starts itself: of `torch.multiprocessing.spawn`, one rank runs, here.

Others are not followed. Where the script starts them is noted.
"""

import os
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.multiprocessing

from .absent.models import AbsentError
from .patches import Patches
from .user_line import is_users
from .waits import Waits
from .world import World

_PROCESS = "another process"
_RUN_PYTHON = ("python", "torchrun", "accelerate", "deepspeed")  # beginnings of the names of programs


def install(patches: Patches, world: World | None, waits: Waits) -> None:
    """Let `spawn` and `start_processes` call the function for the rank that was asked for, in this process."""
    node = 1 if world is None else world.node
    local = 0 if world is None else world.rank % world.node

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> Any:
        if nprocs != node:
            raise AbsentError(
                f"The script starts {nprocs} processes, but a node has {node} GPUs here. Use --gpus {nprocs}."
            )
        waits.leave_out("torch.multiprocessing.spawn", f"only process {local} of {nprocs} runs")
        fn(local, *args)
        return SimpleNamespace(join=lambda *_, **__: True, processes=[])

    patches.put_all(torch.multiprocessing, {"spawn": spawn, "start_processes": spawn})
    _note_others(patches, waits)


def not_followed(waits: Waits) -> str:
    """Return the first line at which the script has started another process, "file:line"; "" where it has not."""
    return next((line for line, what, _ in waits.assumed if what == _PROCESS), "")


def _note_others(patches: Patches, waits: Waits) -> None:
    """Note where the script itself, not a data loader, starts a process that runs Python."""
    start, popen, fork = BaseProcess.start, subprocess.Popen.__init__, getattr(os, "fork", None)

    def note() -> None:
        waits.leave_out(_PROCESS, "not followed")

    def started(self: BaseProcess) -> None:
        if is_users(sys._getframe(1)):
            note()
        start(self)

    def opened(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        words = os.fsdecode(args).split() if isinstance(args, str | bytes | os.PathLike) else list(args)
        if words and Path(os.fsdecode(words[0])).name.startswith(_RUN_PYTHON):
            note()
        popen(self, args, *rest, **options)

    def forked() -> int:
        if is_users(sys._getframe(1)):
            note()
        return fork()

    patches.put(BaseProcess, "start", started)
    patches.put(subprocess.Popen, "__init__", opened)
    if fork is not None:
        patches.put(os, "fork", forked)
