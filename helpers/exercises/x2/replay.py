"""Two ranks in one process, by replay.

A rank runs until its all-reduce needs what the other rank has not sent yet. There it is stopped, and it starts anew
once the other rank has sent it. An answer does the same each time, so what was sent is what it would send again. No
thread and no process is needed, and ranks that wait for each other are seen at once.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..base import Evidence

MOST_CALLS = 150  # of one rank


class _Waits(BaseException):
    """Stops a rank where it would wait: no answer's `except Exception` catches it."""


class AllReduce:
    """Adds up a tensor over two ranks, in place.

    Args:
        own: what this rank has sent in earlier runs; it grows with this one.
        other: what the other rank has sent.

    Attributes:
        numbers: how many numbers this rank has sent.
        agrees: whether both ranks sent tensors of the same shape and dtype in each call.
    """

    def __init__(self, own: list[Tensor], other: list[Tensor]) -> None:
        self.numbers = 0
        self.agrees = True
        self._own, self._other = own, other
        self._calls = 0

    def __call__(self, tensor: Tensor) -> None:
        number, self._calls = self._calls, self._calls + 1
        self.numbers += tensor.numel()
        if number == len(self._own):
            self._own.append(tensor.detach().clone())
        if number >= min(len(self._other), MOST_CALLS):
            raise _Waits
        other = self._other[number]
        if (other.shape, other.dtype) != (tensor.shape, tensor.dtype):
            self.agrees = False
            raise _Waits
        tensor.detach().add_(other)


def replayed(step: Callable[[int, AllReduce], Any]) -> Evidence:
    """Run `step(rank, all_reduce)` for two ranks.

    Returns:
        what each rank returned ("ranks", None for one that never ends), how many numbers each sent ("numbers"), how
        many times each called all_reduce ("calls"), and whether the calls of both agree in shape and dtype ("agree").
    """
    sent: list[list[Tensor]] = [[], []]
    results: list[Any] = [None, None]
    numbers, agree, before = [0, 0], True, -1
    while None in results and before != (before := sum(map(len, sent)) + sum(r is not None for r in results)):
        for rank in (0, 1):
            if results[rank] is None:
                reduce = AllReduce(sent[rank], sent[1 - rank])
                try:
                    results[rank] = step(rank, reduce)
                except _Waits:
                    agree &= reduce.agrees
                numbers[rank] = reduce.numbers
    return {"ranks": results, "numbers": numbers, "calls": [len(calls) for calls in sent], "agree": agree}
