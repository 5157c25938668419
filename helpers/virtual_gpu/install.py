"""Put the virtual GPUs in place, in this process, and take them out again."""

import gc
import threading
from typing import Any

import torch
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from . import (
    autocast,
    cuda_graphs,
    cuda_paths,
    detectors,
    driver,
    dry_values,
    factories,
    generators,
    grouping,
    kernels,
    legacy_types,
    memory,
    mps,
    profiler,
    ranks,
    recurrent,
    recurrent_cells,
    storages,
    streams,
    tensors,
)
from . import world as one_of_many
from .compiler import install as install_compiler
from .dispatch import Pretence
from .dry import DryMode
from .machine import Machine
from .patches import Patches
from .refusals import Refusals
from .waits import Waits
from .world import World

_mode: Pretence | None = None
_patches = Patches()


def mode() -> Pretence:
    """Return the mode of this process."""
    assert _mode is not None, "install first"
    return _mode


def installed() -> bool:
    """Say whether this process has virtual GPUs."""
    return _mode is not None


def install(machine: Machine, dry: Waits | None = None, world: World | None = None) -> None:
    """Make this process believe that it runs on `machine`.

    Args:
        machine: with its GPUs.
        dry: compute nothing on the GPUs, and keep here where values were asked for; None computes on the CPU.
        world: in a dry run, the ranks of which this process is one; None where there are no others.

    Raises:
        RuntimeError: the process has virtual GPUs already.
    """
    if _mode is not None:
        raise RuntimeError("This process has virtual GPUs already.")
    try:
        _put_in_place(machine, dry, world)
    except BaseException:  # an interrupt, say: the first imports take a second
        uninstall()
        raise


def _put_in_place(machine: Machine, dry: Waits | None, world: World | None) -> None:
    global _mode
    _device_constructors()  # `with torch.device(...)` remembers the factories as they are now
    memory.machine = machine
    apple = machine.kind == "mps"
    refusals = Refusals(machine)
    _mode = mps.ApplePretence(refusals) if apple else Pretence(refusals) if dry is None else DryMode(refusals, dry)
    tensors.install(_patches)
    factories.install(_patches)
    storages.install(_patches)
    for owner in (torch._C, torch):
        _patches.put(owner, "Generator", generators.Generator)
    if apple:
        mps.install(_patches, machine)
    else:
        driver.install(_patches, machine)
        streams.install(_patches)
        if dry is None:
            ranks.install(_patches)
        else:
            driver.count_named_gpus(_patches, machine)
            ranks.install_nccl(_patches)
            one_of_many.install(_patches, world, dry)
        install_compiler(_patches)
        kernels.install(_patches)
        legacy_types.install(_patches)
        grouping.install(_patches)
        cuda_paths.install(_patches, machine)
        recurrent.install(_patches)
        recurrent_cells.install(_patches)
        if dry is not None:
            dry_values.install(_patches, dry)
            cuda_graphs.install(_patches, dry.leave_out)
            detectors.install(_patches)
    profiler.install(_patches)
    autocast.install(_patches)
    _in_threads()
    _mode.__enter__()


def uninstall() -> None:
    """Take the virtual GPUs out again: PyTorch is as it was, and tensors that were on them are the CPU's."""
    global _mode
    try:
        if _mode in _get_current_dispatch_mode_stack():
            _mode.__exit__(None, None, None)
        _patches.undo()
        gc.collect()  # homes go with their storages, and look for their GPU
    finally:
        memory.forget()
        generators.forget()
        _device_constructors.cache_clear()
        _mode = None


def _in_threads() -> None:
    """Let every new thread have the GPUs as well: modes belong to a thread."""
    base = threading.Thread._bootstrap_inner

    def bootstrap(self: threading.Thread) -> Any:
        if _mode is None:
            return base(self)
        with _mode:
            return base(self)

    _patches.put(threading.Thread, "_bootstrap_inner", bootstrap)
