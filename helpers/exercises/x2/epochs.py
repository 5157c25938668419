"""An epoch for part 3: what an answer is called with, where its run is stopped, and what is noted of it."""

import io
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Evidence
from ..probing.returned_loss import number
from .spy import CLASSES, FEATURES, HIDDEN, Loss, Spy, leave_gradients, rows_of_classes, update_since, weights
from .stream import Stream

RATE = 0.1
EARLIER = 5  # updates of the epochs before this one: the schedule goes on, the loader begins anew


@dataclass(frozen=True)
class Case:
    """What an answer is called with.

    Attributes:
        stops: after how many micro-batches each call but the last is stopped; none for an epoch in one call.
        lr: 0 keeps the weights where they are, so that a wrong group spoils no later one.
        falls: whether the schedule lowers the learning rate with each call.
        idle: whether the model has a layer that no micro-batch reaches.
        rare: whether it has a layer that only micro-batches with an odd number of rows reach.
        parameter_groups: of the optimizer.
        doubled: whether the second of two micro-batches has the rows of the first, twice.
    """

    sizes: list[int]
    accumulate: int
    stops: tuple[int, ...] = ()
    lr: float = RATE
    falls: bool = False
    weight_decay: float = 0.0
    momentum: float = 0.0
    old_gradients: bool = False
    idle: bool = False
    rare: bool = False
    parameter_groups: int = 1
    doubled: bool = False
    loss_fn: Loss = F.cross_entropy

    @property
    def groups(self) -> list[list[int]]:
        """The sizes of the micro-batches of each group."""
        return [self.sizes[i : i + self.accumulate] for i in range(0, len(self.sizes), self.accumulate)]


class Logged(torch.optim.lr_scheduler.LambdaLR):
    """A schedule that notes its steps (s) among a spy's events."""

    events: list[str] | None = None

    def step(self, *args: Any) -> None:
        if self.events is not None:
            self.events.append("s")
        super().step(*args)


class Training:
    """A model, its optimizer and its schedule, as one process has them.

    Attributes:
        parts: what `train_epoch` is called with first: the model, the optimizer, and the schedule.
    """

    def __init__(self, seed: int, case: Case) -> None:
        torch.manual_seed(seed)
        layers = [nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)]
        idle = [_Idle()] if case.idle else []  # first, so that leaving it out of a list moves all the others
        self.model = nn.Sequential(*idle, *layers, *([_Rare()] if case.rare else [])).double()
        settings = {"lr": case.lr, "weight_decay": case.weight_decay, "momentum": case.momentum}
        parameters = list(self.model.parameters())
        groups = [{"params": parameters[i :: case.parameter_groups]} for i in range(case.parameter_groups)]
        self.optimizer = torch.optim.SGD(groups, **settings)
        self.scheduler = Logged(self.optimizer, lambda step: 1 / (1 + max(step - EARLIER, 0)) if case.falls else 1.0)
        for _ in range(EARLIER):
            self.optimizer.step()
            self.scheduler.step()
        self.spy = Spy(self.model, self.optimizer)
        self.scheduler.events = self.spy.events
        self.parts = self.model, self.optimizer, self.scheduler

    def state(self) -> list[Any]:
        """Return what the caller saves: the schedule without its log."""
        scheduler = {key: value for key, value in self.scheduler.state_dict().items() if key != "events"}
        return [self.model.state_dict(), self.optimizer.state_dict(), scheduler]

    def load(self, state: list[Any]) -> None:
        """Take up what another process has saved. Its gradients are not among it: others lie here."""
        for part, saved in zip(self.parts, state, strict=True):
            part.load_state_dict(saved)
        leave_gradients(self.model)


class _Idle(nn.Module):
    """A layer that has a weight, and hands on what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x


class _Rare(nn.Module):
    """A layer whose weight only outputs of an odd number of rows get to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CLASSES, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight if len(x) % 2 else x


def saved(state: Any) -> Any:
    """Return what comes back from a file that `state` was saved to."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def epoch(train_epoch: Any, seed: int, case: Case) -> Evidence:
    """Run an epoch; after each stop, another process goes on with what was saved."""
    training = Training(seed, case)
    x, y = rows_of_classes(case.sizes[0] if case.doubled else sum(case.sizes))
    if case.doubled:
        x, y = x.repeat(3, 1), y.repeat(3)
    if case.old_gradients:
        leave_gradients(training.model)
    before = weights(training.model)
    seen: Evidence = {"calls": [], "losses": [], "rows": [], "first": [], "gradients": [], "rates": [], "events": ""}
    state = None
    for stop in (*case.stops, None):
        spy = training.spy
        stream = Stream(x, y, case.sizes, spy)
        returned = train_epoch(*training.parts, case.loss_fn, stream, case.accumulate, state, stop)
        seen["calls"].append(_call(returned, stream, spy))
        seen["losses"] += seen["calls"][-1].pop("losses")
        for name in ("rows", "first", "gradients", "rates"):
            seen[name] += getattr(spy, name)
        seen["events"] += "".join(spy.events)
        if not seen["calls"][-1]["pair"] or returned[1] is None:
            break
        checkpoint = saved([*training.state(), returned[1]])
        training = Training(seed + 1, case)
        training.load(checkpoint[:3])
        state = checkpoint[3]
    return seen | {"moved": update_since(before, training.model)}


def _call(returned: Any, stream: Stream, spy: Spy) -> Evidence:
    """Describe one call: what it returned, what it held, and the model's modes."""
    pair = isinstance(returned, tuple | list) and len(returned) == 2
    losses = returned[0] if pair else None
    kind = type(losses).__name__
    return {
        "pair": pair,
        "kind": kind,
        "losses": [number(loss) for loss in losses] if kind == "list" else [],
        "ended": pair and returned[1] is None,
        "held": stream.held,
        "fed": len(spy.rows),
        "starts": len(stream.starts),
        "first": stream.starts[0] if stream.starts else None,
        "modes": spy.modes,
    }
