"""What happens while an answer trains: every forward pass, what is measured when, and by which clock.

Hooks on all modules and optimizers note it. They are PyTorch's global ones, so that an answer may build its model
and its loop as it likes.
"""

import functools
import inspect
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ...core.data import Split
from ...meter.recorder import MemoryMeter
from ..probing.set_clock import SetClock

STEP_SECONDS = 1e3  # by which a training step takes longer by the set clock, on average
# Factors, step by step: one step differs from the mean, two consecutive steps hardly do.
UNEVEN = (1.0, 0.965, 1.0, 1.035)
OTHER_SECONDS = 1e6  # by which the first step, a metered step and an evaluation take longer
SETTINGS = ("lr", "betas", "eps", "weight_decay", "amsgrad", "momentum", "dampening", "nesterov", "maximize")
_FORWARD = 0.3  # the share of them that passes in the forward pass


@dataclass
class Block:
    """What ran in the `with` block of a MemoryMeter."""

    profile: Any
    optimizers: int  # that the meter was given
    passes: list["Pass"] = field(default_factory=list)


@dataclass
class Pass:
    """A forward pass, and what came back."""

    number: int  # of the forward passes in training mode before it
    layer: nn.Conv2d  # the one that sees the images
    images: Any  # a numpy array
    spare: int  # bytes of the images' memory beyond themselves: they may be a view of the whole data
    training: bool
    weight: float  # the sum of the first layer's weights, without signs
    block: Block | None
    inside: bool  # in the answer's train_step
    dtype: str = ""
    logits: Any = None
    gradient: Any = None

    @property
    def step(self) -> bool:
        """Whether a backward pass followed."""
        return self.gradient is not None


@dataclass
class Update:
    """A step of an optimizer."""

    optimizer: torch.optim.Optimizer
    settings: list[Any]
    numbers: int  # in its parameters
    number: int  # of the forward pass before it
    norm: float | None  # of the gradient, where it was disturbed


class Watch:
    """Watches one training in its `with` block.

    Args:
        train, train_step: the answers.
        disturb: by what the gradient at the outputs is multiplied in one step that no meter looks at; where it is
            finite, in those that one looks at as well.
        disturbed: the first step that may be.
    """

    def __init__(
        self, train: Callable[..., Any], train_step: Callable[..., Any], disturb: float = 1.0, disturbed: int = 0
    ) -> None:
        self.passes: list[Pass] = []
        self.blocks: list[Block] = []
        self.updates: list[Update] = []
        self.at = -1  # the number of the disturbed step that no meter looks at
        self.seconds = 0.0  # by the true clock
        self._disturb, self._from = disturb, disturbed
        self._open: list[Block] = []
        self._metered: set[int] = set()  # the numbers of disturbed steps that a meter looks at
        self._code = getattr(inspect.unwrap(_function(train_step)), "__code__", None)
        self._clock = SetClock(getattr(inspect.unwrap(_function(train)), "__globals__", {}))
        self._ended = ExitStack()

    def __enter__(self) -> "Watch":
        for handle in (
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after),
            register_optimizer_step_pre_hook(self._update),
        ):
            self._ended.callback(handle.remove)
        self._ended.enter_context(self._meters())
        self._began = time.perf_counter()
        self._ended.enter_context(self._clock)
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.close()
        self.seconds = time.perf_counter() - self._began

    @contextmanager
    def _meters(self) -> Iterator[None]:
        """Note the block of each meter."""
        begin, end = MemoryMeter.__enter__, MemoryMeter.__exit__

        def begun(meter: MemoryMeter) -> Any:
            profile = begin(meter)
            self._open.append(Block(profile, len(meter._optimizers)))
            self.blocks.append(self._open[-1])
            return profile

        def ended(meter: MemoryMeter, *error: object) -> None:
            self._open.pop()
            end(meter, *error)

        with mock.patch.multiple(MemoryMeter, __enter__=begun, __exit__=ended):
            yield

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not (isinstance(module, nn.Conv2d) and module.in_channels == 1):
            return
        images = args[0].detach()
        block = self._open[-1] if self._open else None
        number = sum(one.training for one in self.passes)
        one = Pass(
            number,
            module,
            # Memory of numpy: a meter that is measuring does not see it.
            images.float().cpu().numpy().copy(),
            images.untyped_storage().nbytes() - images.nbytes,
            module.training,
            0.0 if number else module.weight.detach().abs().sum().item(),
            block,
            self._code is None or self._in_train_step(),
        )
        self.passes.append(one)
        if block:
            block.passes.append(one)
        self._clock.ahead += _FORWARD * self._takes(one)

    @staticmethod
    def _takes(one: Pass) -> float:
        ordinary = one.training and one.number and not one.block
        return STEP_SECONDS * UNEVEN[one.number % len(UNEVEN)] if ordinary else OTHER_SECONDS

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not self.passes:
            return
        one = self.passes[-1]
        if module is one.layer:
            one.dtype = str(output.dtype).removeprefix("torch.")
        elif isinstance(module, nn.Linear) and output.requires_grad:
            one.logits = output.detach().float().cpu().numpy().copy()
            output.register_hook(functools.partial(self._backward, one))

    def _backward(self, one: Pass, gradient: Tensor) -> Tensor | None:
        one.gradient = gradient.detach().float().cpu().numpy().copy()
        self._clock.ahead += (1 - _FORWARD) * self._takes(one)
        if self._disturb == 1.0:
            return None
        if one.block and math.isfinite(self._disturb):
            self._metered.add(one.number)
        elif not one.block and self.at < 0 and one.number >= self._from:
            self.at = one.number
        else:
            return None
        return gradient * self._disturb

    def _update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        settings = [
            type(optimizer).__name__,
            *([group.get(name) for name in SETTINGS] for group in optimizer.param_groups),
        ]
        held = [p for group in optimizer.param_groups for p in group["params"]]
        number, norm = self.passes[-1].number if self.passes else -1, None
        if number >= 0 and number in {self.at, *self._metered}:
            norm = torch.stack([p.grad.norm() for p in held if p.grad is not None]).norm().item()
        self.updates.append(Update(optimizer, settings, sum(p.numel() for p in held), number, norm))

    def _in_train_step(self) -> bool:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return frame is not None


def _function(answer: Any) -> Any:
    """Return the function inside of a functools.partial."""
    while isinstance(answer, functools.partial):
        answer = answer.func
    return answer


def rows_of(images: Any, data: Split) -> list[int]:
    """Return which rows of the training set `images` are; -1 for one that is none of them."""
    flat = torch.from_numpy(images).flatten(1)
    train = data.train_x.cpu().flatten(1)
    if flat.shape[1] != train.shape[1]:
        return [-1] * len(flat)
    distance, nearest = torch.cdist(flat, train).min(1)
    return nearest.masked_fill(distance > 0.1, -1).tolist()
