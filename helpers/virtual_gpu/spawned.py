"""Processes that a script starts itself, one for each GPU: of `torch.multiprocessing.spawn`, one rank runs, here."""

from types import SimpleNamespace
from typing import Any

import torch.multiprocessing

from .absent.models import AbsentError
from .patches import Patches
from .waits import Waits
from .world import World


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
