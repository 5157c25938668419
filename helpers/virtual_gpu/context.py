"""`with virtual_gpu("rtx-4090"):` in a notebook or a program: the code inside runs on a GPU that is not there."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..planner.catalog.gpus import find_gpu
from . import memory, waits
from .dry import DryMode
from .dry_run import DryRun
from .install import install, mode, uninstall
from .ledger import Ledger
from .lost_values import EarlierModels
from .machine import Machine
from .step_forecast import computed
from .steps import Steps
from .traffic import Traffic
from .world import World


@contextmanager
def virtual_gpu(
    name: str, *, gpus: int = 1, steps: int | None = None, strict: bool = False, world: World | None = None
) -> Iterator[DryRun]:
    """Let this process have GPUs, on which operations take memory and compute nothing; afterwards it has none.

    Tensors that outlive the block are the CPU's, and their values mean nothing: not those of a model either that was
    made before the block and moved into it, of which a warning says so.

    Args:
        name: of the catalog, e.g. "rtx-4090", or the path of the TOML file of a GPU.
        gpus: how many.
        steps: optimizer steps after which the program is ended by `EnoughStepsError`; None lets it go on.
        strict: raise where a value is asked for that does not exist.
        world: the ranks of which this process is one; None where there are no others.

    Yields:
        What is known of the program so far; print it inside the block or after.

    Raises:
        RecipeError: the catalog has no such GPU, or the file describes none.
    """
    gpu, machine = find_gpu(name), Machine.named(name, gpus)
    seen = waits.Waits(strict=strict)
    ledger = Ledger()
    run = DryRun(gpu, ledger, seen, world)
    earlier = EarlierModels()
    install(machine, seen, world)
    try:
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
            uninstall()
            earlier.warn_of_lost_values(stacklevel=3)  # below: contextlib's __exit__, and the block
