"""Operations timed where they are: in a step, one after another, with the memory as the step has left it.

Called again and again by itself, an operation finds its inputs in the cache and the memory of its last result free
again. In a step it often finds neither.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...core.device import synchronize
from ..work import Work, work_of


class TimedWork(NamedTuple):
    """One operation: what it had to do, and the seconds it took, Python around it not counted."""

    work: Work
    seconds: float


class _Timing(TorchDispatchMode):
    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.operations: list[TimedWork] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        synchronize(self.device)
        began = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        synchronize(self.device)
        seconds = time.perf_counter() - began
        work = work_of(func, args, kwargs or {}, result)
        if work:
            self.operations.append(TimedWork(work, seconds))
        return result


def timed(fn: Callable[[], object], device: torch.device) -> list[TimedWork]:
    """Run `fn()` and return its operations in order, with those of a backward pass in it, and without views."""
    with _Timing(device) as timing:
        fn()
    return timing.operations
