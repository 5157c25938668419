"""`with virtual_gpu("rtx-4090"):` in a notebook or a program: the code inside runs on a GPU that is not there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..planner.catalog.gpus import find_gpu
from . import memory, waits
from .dry import DryMode
from .dry_run import DryRun
from .install import install, mode, uninstall
from .ledger import Ledger
from .lost_values import EarlierModels
from .machine import Machine
from .patches import Patches
from .step_forecast import computed
from .steps import Steps
from .traffic import Traffic
from .world import World


@contextmanager
def virtual_gpu(
    name: str, *, gpus: int = 1, steps: int | None = None, strict: bool = False, world: World | None = None
) -> Iterator[DryRun]:
    """Give this process virtual GPUs, on which operations allocate memory but compute nothing.

    After the block they are gone. Tensors that outlive it are on the CPU, and their values are meaningless. The same is
    true of a model that was created before the block and moved into it; a warning names it.

    Args:
        name: of the catalog, e.g. "rtx-4090", or the path of the TOML file of a GPU.
        gpus: number of GPUs.
        steps: optimizer steps after which the program is ended by `EnoughStepsError`; None lets it go on.
        strict: raise where a value is asked for that does not exist.
        world: the group of ranks that this process belongs to; None where there are no others.

    Yields:
        What is known of the program so far; print it inside the block or after.

    Raises:
        RecipeError: the catalog has no such GPU, or the file describes none.
    """
    gpu, machine = find_gpu(name), Machine.named(name, gpus)
    seen = waits.Waits(strict=strict)
    ledger = Ledger()
    run = DryRun(gpu, ledger, seen, world)
    earlier, patches = EarlierModels(), Patches()
    install(machine, seen, world)
    try:
        patches.put(torch.nn.Parameter, "__deepcopy__", _noting_copies(ledger))
        memory.watch = ledger
        dry = mode()
        assert isinstance(dry, DryMode)
        dry.seen = lambda work: ledger.worked(computed(work, gpu))
        dry.traffic = ledger.traffic = Traffic()
        with Steps(ledger, steps, lambda: run.ignored()) as counted:
            dry.wrote, dry.stacked, dry.taken_apart = counted.wrote, ledger.stacked, ledger.taken_apart
            yield run
        run.caught = ledger.ran_out
    finally:
        try:
            run.close()
        finally:
            patches.undo()
            uninstall()
            earlier.warn_of_lost_values(stacklevel=3)  # below: contextlib's __exit__, and the block


def _noting_copies(ledger: Ledger) -> Callable[..., Any]:
    """Return `Parameter.__deepcopy__`, which tells the ledger of the copies."""
    base = torch.nn.Parameter.__deepcopy__

    def copied(parameter: torch.nn.Parameter, memo: dict[int, Any]) -> Any:
        copy = base(parameter, memo)
        ledger.copied_parameter(copy)
        return copy

    return copied
