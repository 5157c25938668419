"""Checks of part 4: an epoch of accumulated steps."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.returned_loss import EXACT, number, wrong_loss
from .spy import (
    ANOTHER_LOSS,
    CLIPPED,
    OLD_GRADIENTS,
    OWN_STATE,
    Loss,
    Spy,
    classifier,
    compared,
    leave_gradients,
    rows_of_classes,
    smoothed,
    steep,
    update_since,
    weights,
    wrong_mode,
    wrong_rows,
)
from .stream import Stream

RATE = 0.1
WIDE = 256  # the hidden layer where activations are measured: far more than inputs


@dataclass(frozen=True)
class _Case:
    """What an answer is called with.

    Attributes:
        lr: 0 keeps the weights where they are, so that a wrong group spoils no later one.
        falls: whether the schedule lowers the learning rate with each call.
    """

    sizes: list[int]
    accumulate: int
    lr: float = RATE
    falls: bool = False
    weight_decay: float = 0.0
    momentum: float = 0.0
    old_gradients: bool = False
    loss_fn: Loss = F.cross_entropy

    @property
    def groups(self) -> list[list[int]]:
        """The sizes of the micro-batches of each group."""
        return [self.sizes[i : i + self.accumulate] for i in range(0, len(self.sizes), self.accumulate)]


FULL_GROUPS = {
    "one group of 4 micro-batches": _Case([16] * 4, 4),
    "8 micro-batches, 4 a step": _Case([16] * 8, 4),
    "micro-batches of different sizes, 3 a step": _Case([16, 16, 5, 7, 16, 11], 3),
    "with weight decay, 2 a step": _Case([16] * 6, 2, weight_decay=0.5),
    "1 a step": _Case([16, 5, 1], 1),
}
ONE_CLAUSE_EACH = {
    "old gradients": _Case([16] * 4, 4, old_gradients=True),
    "another loss": _Case([16] * 4, 4, loss_fn=smoothed),
    "steep loss": _Case([16] * 4, 4, loss_fn=steep),
    "momentum": _Case([16] * 8, 2, momentum=0.9),
    "a long epoch": _Case([4] * 24, 2),
}
WITH_A_REST = {
    "8 micro-batches, 4 a step": _Case([16] * 8, 4, lr=0.0),
    "10 micro-batches, 4 a step": _Case([16] * 10, 4, lr=0.0),
    "3 micro-batches, 4 a step": _Case([16] * 3, 4, lr=0.0),
    "ragged, 3 a step": _Case([16, 16, 16, 16, 5], 3, lr=0.0),
    "one row left over, 4 a step": _Case([16] * 4 + [1], 4, lr=0.0),
    "the last micro-batch has one row, 4 a step": _Case([16] * 6 + [1], 4, lr=0.0),
}


class _Logged(torch.optim.lr_scheduler.LambdaLR):
    """A schedule that notes its steps (s) among a spy's events."""

    events: list[str] | None = None

    def step(self, *args: Any) -> None:
        if self.events is not None:
            self.events.append("s")
        super().step(*args)


def _epoch(train_epoch: Any, seed: int, case: _Case) -> Evidence:
    model, optimizer = classifier(seed, case.lr, case.weight_decay, case.momentum)
    scheduler = _Logged(optimizer, lambda step: 1 / (1 + step) if case.falls else 1.0)
    x, y = rows_of_classes(sum(case.sizes))
    spy = Spy(model, optimizer)
    scheduler.events = spy.events
    stream = Stream(x, y, case.sizes, spy)
    if case.old_gradients:
        leave_gradients(model)
    before = weights(model)
    losses = train_epoch(model, optimizer, scheduler, case.loss_fn, iter(stream), case.accumulate)
    return {
        "moved": update_since(before, model),
        "gradients": spy.gradients,
        "kind": type(losses).__name__,
        "losses": None if losses is None else [number(loss) for loss in losses],
        "rows": spy.rows,
        "first": spy.first,
        "rates": spy.rates,
        "events": "".join(spy.events),
        "modes": spy.modes,
        "held": stream.held,
    }


def _activations(train_epoch: Any, seed: int) -> int:
    """Return by how much the peak grows where a group has eight micro-batches in place of two."""
    peaks = []
    for accumulate in (2, 8):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(12, WIDE), nn.Tanh(), nn.Linear(WIDE, 5)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        x, y = rows_of_classes(8 * 16)
        loader = zip(x.split(16), y.split(16), strict=True)
        with MemoryMeter(model, optimizer, by_tenant=False) as meter:
            train_epoch(model, optimizer, _Logged(optimizer, lambda _: 1.0), F.cross_entropy, loader, accumulate)
        peaks.append(meter.peak_bytes)
    return peaks[1] - peaks[0]


def _miscounted(got: Evidence, want: Evidence) -> str | None:
    if len(got["gradients"]) == len(want["gradients"]):
        return None
    return f"{len(got['gradients'])} updates; it should be {len(want['gradients'])}."


def _wrong_gradient(got: Evidence, want: Evidence, group: int) -> str | None:
    """Say what is wrong with the gradient of one group."""
    seen, right = got["gradients"][group], want["gradients"][group]
    if relative_distance(seen, right) <= EXACT:
        return None
    if group:
        extra = torch.tensor(seen) - torch.tensor(right)
        before = torch.tensor(got["gradients"][group - 1])
        if torch.cosine_similarity(extra, before, dim=0) > 0.9999:
            return "gradients of the last update are still there: clear them after each update."
    return f"the gradient {compared(seen, right, 'the mean over the rows of the group')}."


def _wrong_losses(got: Evidence, want: Evidence) -> str | None:
    if got["losses"] is None:
        return "nothing was returned; a list with the mean loss of each group is wanted."
    if got["kind"] != "list":
        return f"a {got['kind']} came back; a list with the mean loss of each group is wanted."
    if len(got["losses"]) != len(want["losses"]):
        return f"{len(got['losses'])} losses came back; one for each update makes {len(want['losses'])}."
    for group, (mine, right) in enumerate(zip(got["losses"], want["losses"], strict=True), 1):
        wrong = wrong_loss(mine, right["value"])
        if wrong:
            return f"the loss of group {group}: {wrong}"
    return None


class EachGroupCounts(Check):
    """Each full group makes one update in which its rows weigh the same; at most two groups are held at a time."""

    points = 1
    hint = (
        "Each row of a group weighs 1 / (rows of the group), however its micro-batches are cut; gradients are cleared "
        "before the first and after each update; take micro-batches from the loader as you need them."
    )

    @staticmethod
    def probe(seed: int, train_epoch: Any) -> Evidence:
        cases = FULL_GROUPS | ONE_CLAUSE_EACH
        seen = {name: _epoch(train_epoch, seed, case) for name, case in cases.items()}
        return seen | {"activations": _activations(train_epoch, seed)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, case in FULL_GROUPS.items():
            got, want = seen[name], expected[name]
            wrong = wrong_rows(got, want) or _miscounted(got, want) or wrong_mode(got["modes"])
            if wrong:
                return f"{name}: {wrong}"
            for group in range(len(case.groups)):
                wrong = _wrong_gradient(got, want, group)
                if wrong:
                    return f"{name}, group {group + 1}: {wrong}"
            if not relative_distance(got["moved"], want["moved"]) <= EXACT:
                return f"{name}: the gradients are right, and the weights have moved as no such update moves them."
            wrong = _wrong_losses(got, want)
            if wrong:
                return f"{name}: {wrong}"
        clauses = {
            "old gradients": OLD_GRADIENTS,
            "another loss": ANOTHER_LOSS,
            "steep loss": CLIPPED,
            "momentum": OWN_STATE,
        }
        for name, verdict in clauses.items():
            if not relative_distance(seen[name]["moved"], expected[name]["moved"]) <= EXACT:
                return verdict
        long = ONE_CLAUSE_EACH["a long epoch"]
        held, most = seen["a long epoch"]["held"], 2 * long.accumulate
        if held > most:
            return (
                f"{held} of {len(long.sizes)} micro-batches were held at once, {long.accumulate} a step; two "
                f"groups are {most}. An epoch does not fit into memory: no list(loader), and keep no micro-batch after "
                "its update."
            )
        more = 6 * 16 * WIDE * 8  # what six micro-batches more hold in the hidden layer
        if seen["activations"] > more / 2:
            return (
                f"With 8 micro-batches a step the peak is {seen['activations']:,} bytes higher than with 2: their "
                "graphs are alive together. Call backward() for each micro-batch before the next forward pass."
            )
        return None


class LastGroupCounts(Check):
    """Micro-batches left over at the end of an epoch make a smaller group with an update of its own."""

    points = 1
    hint = (
        "What is left when the loader ends is a group, too: one more update after the loop, each of its rows weighing "
        "1 / (rows of this group). An empty rest makes none."
    )

    @staticmethod
    def probe(seed: int, train_epoch: Any) -> Evidence:
        return {name: _epoch(train_epoch, seed, case) for name, case in WITH_A_REST.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, case in WITH_A_REST.items():
            got, want = seen[name], expected[name]
            left = len(case.groups[-1]) if len(case.sizes) % case.accumulate else 0
            rest = f"{left} are left over" if left else "nothing is left over"
            wrong = _miscounted(got, want) or wrong_rows(got, want)
            if wrong:
                return f"{name}, {rest}: {wrong}"
            if left:
                wrong = _wrong_gradient(got, want, len(case.groups) - 1)
                if wrong:
                    return f"{name}, the last group of {left}: {wrong}"
                if len(got["losses"] or ()) != len(want["losses"]):
                    return f"{name}: the loss of the last group of {left} is not in the list."
                wrong = wrong_loss(got["losses"][-1], want["losses"][-1]["value"])
                if wrong:
                    return f"{name}, the loss of the last group of {left}: {wrong}"
        return None


class SchedulerStepsWithTheOptimizer(Check):
    """The learning rate moves once for each update, right after it, and not for each micro-batch."""

    points = 1
    hint = "A schedule is written in updates: scheduler.step() belongs right after optimizer.step()."

    @staticmethod
    def probe(seed: int, train_epoch: Any) -> Evidence:
        case = _Case([8] * (4 * (2 + seed % 4) + 1 + seed % 3), 4, falls=True)
        got = _epoch(train_epoch, seed, case)
        return {"micro_batches": len(got["rows"]), "rates": got["rates"], "events": got["events"]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        events = seen["events"]
        updates, moves = events.count("u"), events.count("s")
        if not updates:
            return "The optimizer never stepped, so there is nothing to schedule."
        if moves != updates:
            return (
                f"After {seen['micro_batches']} micro-batches and {updates} updates, the last of a smaller group, the "
                f"scheduler has moved {moves} times; the schedule is in updates."
            )
        if events.count("us") != updates:
            return (
                "The scheduler moves as often as the optimizer, and not right after each update: between the two comes "
                "another forward pass or another update. Call scheduler.step() after optimizer.step(), each time."
            )
        for update, rate in enumerate(seen["rates"]):
            right = RATE / (1 + update)
            if not abs(rate - right) <= 1e-9:
                return (
                    f"The learning rate of update {update + 1} was {rate:.3g}; {right:.3g} is right. "
                    "Does the scheduler step right after the optimizer, each time?"
                )
        return None


EPOCH = (EachGroupCounts, LastGroupCounts, SchedulerStepsWithTheOptimizer)
