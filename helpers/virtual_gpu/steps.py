"""Counts the optimizer steps of a program, and ends it after enough of them."""

import gc
from types import TracebackType
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import stand_ins
from .ledger import Ledger


class EnoughStepsError(BaseException):
    """The program has taken as many optimizer steps as it was to take. Not an `Exception`: programs catch those."""


class Steps:
    """Watches all optimizers while it is entered.

    With one optimizer a step ends when it has stepped. With several (a GAN, an optimizer for each parameter), a step
    ends when one that has already stepped begins again.

    Args:
        ledger: is told of updates and of the ends of steps.
        limit: steps after which the program ends; None lets it go on.
    """

    def __init__(self, ledger: Ledger, limit: int | None) -> None:
        self._ledger, self._limit = ledger, limit
        self._alone: bool | None = None  # whether there is one optimizer; None before the first step
        self._this_step: set[int] = set()
        self.count = 0

    def __enter__(self) -> "Steps":
        stand_ins.forget()
        self._others = WeakSet(filter(_is_optimizer, gc.get_objects()))  # of whatever ran in this process before
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()
        stand_ins.steps = 0

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if id(optimizer) in self._this_step:
            self._end()
        self._ledger.before_update(optimizer)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._ledger.after_update(optimizer)
        self._this_step.add(id(optimizer))
        if self._alone is None:
            self._alone = len(set(filter(_is_optimizer, gc.get_objects())) - set(self._others)) == 1
        if self._alone:
            self._end()

    def _end(self) -> None:
        self._this_step.clear()
        self._ledger.end_step()
        self.count += 1
        stand_ins.steps = self.count
        if self._limit is not None and self.count >= self._limit:
            self._ledger.label_modules()
            self._ledger.over = len(self._ledger.events)
            raise EnoughStepsError


def _is_optimizer(thing: object) -> bool:
    """Say whether `thing` is an optimizer that steps by itself, and not a wrapper of one."""
    return issubclass(type(thing), torch.optim.Optimizer) and "_optimizer_step_pre_hooks" in vars(thing)
