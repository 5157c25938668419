"""See whether an answer replaces, on its rank, what a check rests on.

Where an answer is graded, a guard sees to the kernel; ranks are other processes.
"""

import gc
import sys
import tracemalloc
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from ...meter.profile import MemoryProfile
from ...meter.recorder import MemoryMeter

OUTSIDE: tuple[Any, ...] = (torch, torch.Tensor, torch.autograd, torch.nn.functional, dist, dist.distributed_c10d)
OUTSIDE += (tracemalloc, gc, MemoryMeter, MemoryProfile)


class Untouched:
    """The functions and classes that checks of a rank call, as they are when this is made."""

    def __init__(self) -> None:
        here = [module for name, module in sys.modules.items() if name.startswith(f"{__package__}.")]
        owners = [*OUTSIDE, *here]
        owners += [kind for module in here for kind in vars(module).values() if _is_ours(kind)]
        self._names = [(owner, dict(vars(owner))) for owner in owners]

    def changed(self) -> list[str]:
        """Return the names that stand for something else by now."""
        return [
            f"{owner.__name__}.{name}"
            for owner, before in self._names
            for name, value in vars(owner).items()
            if (callable(value) or isinstance(value, property | ModuleType)) and before.get(name, value) is not value
        ]


def _is_ours(kind: Any) -> bool:
    return isinstance(kind, type) and kind.__module__.startswith(f"{__package__}.")
