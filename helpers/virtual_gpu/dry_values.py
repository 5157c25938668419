"""What reads a tensor's memory without asking the dispatcher: in a dry run it gets stand-ins."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from .hollow import is_hollow
from .homes import home_of
from .patches import Patches
from .stand_ins import fill, scripted
from .tensors import announced
from .waits import Waits

_MOST = 50  # times that random values are drawn again: all memory that takes is taken by the second


def install(patches: Patches, waits: Waits) -> None:
    """Teach the methods of `torch.Tensor`, and count explicit synchronizations."""
    base_list, base_numpy, base_synchronize = Tensor.tolist, Tensor.numpy, torch.cuda.synchronize

    def tolist(self: Tensor) -> Any:
        return base_list(_with_values(self))

    def numpy(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return base_numpy(self if home_of(self) is not None else _with_values(self), *args, **kwargs)

    def synchronize(device: Any = None) -> None:
        waits.synchronize("torch.cuda.synchronize")
        base_synchronize(device)

    _truncate(patches)
    patches.put_all(Tensor, {"tolist": announced("tolist", tolist), "numpy": announced("numpy", numpy)})
    patches.put(torch.cuda, "synchronize", synchronize)


def _truncate(patches: Patches) -> None:
    """Let `trunc_normal_` draw as often as is to be expected: it draws again while a value is out of bounds."""
    init = torch.nn.init
    base = getattr(init, "_no_grad_trunc_normal_", None)
    if base is None:
        return

    @functools.wraps(base)
    def trunc_normal(tensor: Tensor, mean: float, std: float, a: float, b: float, *args: Any, **named: Any) -> Tensor:
        inside = _below((b - mean) / std) - _below((a - mean) / std)
        again = _times_again(tensor.numel(), 1 - inside)
        with scripted([True] * again + [False]):
            return base(tensor, mean, std, a, b, *args, **named)

    patches.put(init, "_no_grad_trunc_normal_", trunc_normal)


def _below(deviations: float) -> float:
    """Return the share of a normal distribution below so many standard deviations."""
    return (1 + math.erf(deviations / math.sqrt(2))) / 2


def _times_again(numel: int, outside: float) -> int:
    """Return how often values are drawn again until less than one of them is to be expected out of bounds."""
    left, times = numel * outside, 0
    while left >= 1 and times < _MOST:
        left, times = left * outside, times + 1
    return times


def _with_values(tensor: Tensor) -> Tensor:
    """Return `tensor`, on the CPU and with values."""
    if home_of(tensor) is not None:
        return tensor.detach().cpu()
    return fill(torch.empty(tensor.shape, dtype=tensor.dtype), tensor) if is_hollow(tensor) else tensor
