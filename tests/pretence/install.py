"""Put the pretence in place, in this process, for good."""

import threading
from typing import Any

import torch
from torch.utils._device import _device_constructors

from . import autocast, driver, factories, generators, kernels, memory, mps, profiler, ranks, storages, streams, tensors
from .compiler import install as install_compiler
from .dispatch import Pretence
from .machine import Machine
from .refusals import Refusals

_mode: Pretence | None = None
_kept: list[Any] = []  # what ends when nobody holds it


def mode() -> Pretence:
    """Return the mode of this process."""
    assert _mode is not None, "install first"
    return _mode


def install(machine: Machine) -> None:
    """Make this process believe that it runs on `machine`. It cannot be undone."""
    global _mode
    if _mode is not None:
        raise RuntimeError("This process pretends already.")
    _device_constructors()  # `with torch.device(...)` remembers the factories as they are now
    memory.machine = machine
    apple = machine.kind == "mps"
    _mode = (mps.ApplePretence if apple else Pretence)(Refusals(machine))
    tensors.install()
    factories.install()
    storages.install()
    torch.Generator = torch._C.Generator = generators.Generator
    if apple:
        mps.install(machine)
    else:
        driver.install(machine)
        streams.install()
        ranks.install()
        install_compiler()
        _kept.append(kernels.install())
    profiler.install()
    _kept.append(autocast.install())
    _in_threads()
    _mode.__enter__()


def _in_threads() -> None:
    """Let every new thread pretend as well: modes belong to a thread."""
    base = threading.Thread._bootstrap_inner

    def bootstrap(self: threading.Thread) -> Any:
        with mode():
            return base(self)

    threading.Thread._bootstrap_inner = bootstrap
