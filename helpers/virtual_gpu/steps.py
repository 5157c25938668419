"""Counts the optimizer steps of a program, and ends it after enough of them."""

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from . import stand_ins
from .homes import storage_of
from .ledger import Ledger
from .patches import Patches

_PATIENCE = 3  # further steps of a program that catches the error which is to end it


class EnoughStepsError(BaseException):
    """The program has taken as many optimizer steps as it was to take. Not an `Exception`: programs catch those."""


class Steps:
    """Watches all optimizers while it is entered.

    A step ends when every optimizer that the program has made has stepped. Where some have not (a critic that steps
    five times before the generator, an optimizer that is not used), the step turns out to be over when one that has
    already stepped begins again: it ended after the last that stepped. Without any optimizer, a step ends at the first
    module that runs after the program itself has written to weights that have gradients.

    Args:
        ledger: is told of updates and of the ends of steps.
        limit: steps after which the program ends; None lets it go on.
        ignored: called when the program goes on all the same, because it catches every error.
    """

    def __init__(self, ledger: Ledger, limit: int | None, ignored: Callable[[], object] = lambda: None) -> None:
        self._ledger, self._limit, self._ignored = ledger, limit, ignored
        self._this_step: set[int] = set()  # ids of the optimizers that have stepped
        self._ever: set[int] = set()  # of those that have stepped in any step
        self._by_hand: bool | None = None  # whether there is no optimizer; None before the first backward pass
        self._weights: set[int] = set()  # storages
        self._next_forward: RemovableHandle | None = None  # the hook that ends a step by hand
        self._patches = Patches()
        self.count = 0

    def __enter__(self) -> "Steps":
        stand_ins.forget()
        self._process = os.getpid()
        self._made: WeakSet[torch.optim.Optimizer] = WeakSet()
        for name in ("__init__", "__setstate__"):  # the latter makes copies
            self._patches.put(torch.optim.Optimizer, name, self._noting(getattr(torch.optim.Optimizer, name)))
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._patches.undo()
        for handle in self._handles:
            handle.remove()
        if self._next_forward is not None:
            self._forget_forward()
            self._ledger.end_step()
        elif self._this_step and not self._ledger.ran_out and not self._ledger.over:
            self._ledger.end_step()
        stand_ins.steps = 0

    def wrote(self, tensor: Tensor) -> None:
        """Note that an operation has written to `tensor`: it may be a weight, without an optimizer."""
        if self._by_hand is False or not self._ledger.backward_seen or self._next_forward is not None:
            return
        if self._by_hand is None:
            self._by_hand = not self._made
        if not self._by_hand or torch._C._current_graph_task_id() != -1:
            return
        if not self._weights:
            self._weights = set(map(_address, self._ledger.with_gradients())) - {0}
        if _address(tensor) in self._weights:
            self._ledger.label_modules()  # while the gradients live
            self._next_forward = register_module_forward_pre_hook(self._begin_by_hand)

    def _begin_by_hand(self, *_: Any) -> None:
        self._forget_forward()
        self._end()

    def _forget_forward(self) -> None:
        if self._next_forward is not None:
            self._next_forward.remove()
            self._next_forward = None

    def _noting(self, base: Callable[..., None]) -> Callable[..., None]:
        """Return a method that notes the optimizer that it has made.

        Asking the garbage collector for all objects instead would break tuples that other threads are building.
        """

        @functools.wraps(base)
        def made(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            base(optimizer, *args, **kwargs)
            self._made.add(optimizer)

        return made

    def _before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if id(optimizer) in self._this_step:
            self._end()
        self._by_hand = False
        self._forget_forward()
        self._ledger.before_update(optimizer)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._ledger.after_update(optimizer)
        self._this_step.add(id(optimizer))
        self._ever.add(id(optimizer))
        self._ledger.may_end_step()
        if self._this_step.issuperset(map(id, self._made)):
            self._end()

    def _end(self) -> None:
        self._this_step.clear()
        self.count += 1
        stand_ins.steps = self.count
        if self._limit is None or self.count <= self._limit:
            self._ledger.end_step()
        if self._limit is not None and self.count >= self._limit:
            self._ledger.label_modules()
            self._ledger.idle_optimizers = sum(id(optimizer) not in self._ever for optimizer in self._made)
            self._ledger.end_run()
            if os.getpid() != self._process:  # forked by the program: it ends by itself, without a traceback
                raise SystemExit(0)
            if self.count == self._limit + _PATIENCE:
                self._ignored()
            raise EnoughStepsError


def _address(tensor: Tensor) -> int:
    storage = storage_of(tensor)
    return 0 if storage is None else storage.data_ptr()
