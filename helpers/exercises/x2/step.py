"""Checks of part 1: one accumulated step, in which every target of two ranks weighs the same."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from ...core.data import digits
from ...core.device import pick_device
from ...core.models import SmallCNN
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.returned_loss import number, wrong_loss
from .replay import AllReduce, replayed
from .spy import (
    CLASSES,
    CLIPPED,
    DIVIDED_RATE,
    FEATURES,
    GROUPS,
    HIDDEN,
    OLD_GRADIENTS,
    OWN_STATE,
    Spy,
    leave_gradients,
    rows_of_classes,
    update_since,
    weights,
    wrong_mode,
    wrong_rows,
    wrong_update,
)

ANOTHER_LOSS = (
    "With another loss_fn, in which classes have different weights and the joint count is a fraction below 1, the "
    "update is wrong; with plain cross-entropy it is right. Is the loss computed by the loss_fn that you are given, "
    "and is the count used as it comes, neither rounded nor raised to 1?"
)
FROZEN = (
    "A frozen parameter has changed. Momentum and weight decay move a parameter whose gradient is zero: leave .grad at "
    "None."
)
IGNORED = -100  # target of a row that does not count, as in F.cross_entropy
Loss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
RARE = 30.0  # a first feature beyond it sends a row through the rare layer, too


class _Switched(nn.Module):
    """A classifier with a layer that few rows reach, and with frozen factors, in FP64."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.rare = nn.Linear(HIDDEN, HIDDEN)  # amid the others, where its place in the order of calls shows
        self.rare.bias = self.first.bias  # tied: one parameter, whose gradient is sent and divided once
        self.last = nn.Linear(HIDDEN, CLASSES)
        self.factors = nn.Parameter(torch.linspace(0.5, 1.5, HIDDEN), requires_grad=False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh() * self.factors  # (n, HIDDEN)
        reached = x[:, :1] > RARE
        if reached.any():
            h = h + reached * self.rare(h)
        return self.last(h)


def _counted(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropy over rows that count, and how many count."""
    return F.cross_entropy(outputs, y, ignore_index=IGNORED, reduction="sum"), (y != IGNORED).sum()


def _weighted(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return a sum in which classes weigh differently, and the sum of the weights."""
    weight = torch.linspace(0.0025, 0.02, CLASSES, dtype=outputs.dtype)  # all rows together count for less than 1
    counts = torch.where(y == IGNORED, 0.0, weight[y.clamp(min=0)])
    return F.cross_entropy(outputs, y, weight, ignore_index=IGNORED, reduction="sum"), counts.sum()


def _steep(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    total, count = _counted(outputs, y)
    return 100 * total, count


@dataclass(frozen=True)
class _Case:
    """What an answer is called with on each rank.

    Attributes:
        ignored: the share of rows on each rank that do not count.
        rare: the rank that reaches the rare layer; both where it is 2.
        parameter_groups: of the optimizer.
    """

    rows: tuple[int, int]
    micro_batch: int
    ignored: tuple[float, float] = (0.3, 0.6)
    rare: int = 2
    old_gradients: bool = False
    loss_fn: Loss = _counted
    weight_decay: float = 0.0
    momentum: float = 0.0
    steps: int = 1
    parameter_groups: int = 1


EQUAL = "20 and 20 rows in micro-batches of 5"
SAME_WORK = {
    EQUAL: _Case((20, 20), 5),
    "19 and 18 rows in micro-batches of 5": _Case((19, 18), 5),
    "12 rows on each rank, one micro-batch": _Case((12, 12), 16),
}
ALONE = {
    "old gradients": _Case((20, 20), 5, old_gradients=True),
    "another loss": _Case((20, 20), 5, loss_fn=_weighted),
    "weight decay": _Case((20, 20), 5, weight_decay=0.5),
    "steep loss": _Case((20, 20), 5, loss_fn=_steep),
    "momentum": _Case((20, 20), 5, momentum=0.9, steps=2),
    "groups": _Case((10, 10), 5, parameter_groups=2),
}
OTHER_WORK = {
    "23 and 4 rows in micro-batches of 5": _Case((23, 4), 5),
    "no target counts on rank 1": _Case((20, 10), 5, ignored=(0.3, 1.0)),
    "no target counts on rank 0": _Case((10, 20), 5, ignored=(1.0, 0.3)),
    "only rank 0 reaches one of the layers": _Case((20, 20), 5, rare=0),
    "only rank 1 reaches one of the layers": _Case((20, 20), 5, rare=1, weight_decay=0.5),
}


def _data(seed: int, rank: int, case: _Case) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2 * seed + rank)
    n = case.rows[rank]
    x = torch.randn(n, FEATURES, generator=generator, dtype=torch.float64)
    x *= torch.linspace(0.2, 3.0, n, dtype=torch.float64)[:, None]
    if case.rare in (2, rank):
        x[n // 2, 0] = 2 * RARE
    y = torch.randint(CLASSES, (n,), generator=generator)
    y[torch.randperm(n, generator=generator)[: round(case.ignored[rank] * n)]] = IGNORED
    return x, y


def _on_rank(accumulated_step: Any, seed: int, case: _Case, rank: int, all_reduce: AllReduce) -> Evidence:
    torch.manual_seed(seed)
    model = _Switched()
    settings = {"weight_decay": case.weight_decay, "momentum": case.momentum}
    parameters = list(model.parameters())
    groups = [{"params": parameters[i :: case.parameter_groups]} for i in range(case.parameter_groups)]
    optimizer = torch.optim.SGD(groups, lr=1.0, **settings)
    x, y = _data(seed, rank, case)
    if case.old_gradients:
        leave_gradients(model)
        model.factors.grad = None
    before, frozen = weights(model), model.factors.detach().clone()
    for _ in range(case.steps):
        loss = accumulated_step(model, optimizer, case.loss_fn, x, y, case.micro_batch, all_reduce)
    kept = torch.equal(model.factors, frozen)
    return {"moved": update_since(before, model), "loss": number(loss), "frozen": kept}


def _together(accumulated_step: Any, seed: int, case: _Case) -> Evidence:
    """Run a step on two ranks; say also how many numbers a step may send."""
    seen = replayed(lambda rank, all_reduce: _on_rank(accumulated_step, seed, case, rank, all_reduce))
    gradients = sum(p.numel() for p in _Switched().parameters() if p.requires_grad)
    return seen | {"enough": gradients + 2}


def _hangs(seen: Evidence) -> str | None:
    """Say that the ranks do not make the same all_reduce calls."""
    if not seen["agree"]:
        return (
            "in one of the calls to all_reduce the ranks pass tensors of different shapes or dtypes. Do both take the "
            "parameters in the same order, whichever of them have a gradient?"
        )
    if None in seen["ranks"]:
        waits, calls = seen["ranks"].index(None), seen["calls"]
        return (
            f"rank {waits} waits forever: it calls all_reduce {calls[waits]} times or more, and rank {1 - waits} "
            f"{calls[1 - waits]} times. What decides how often a rank calls it?"
        )
    return None


def _frozen_moved(seen: Evidence) -> bool:
    return not all(rank is None or rank["frozen"] for rank in seen["ranks"])


def _wrong(seen: Evidence, expected: Evidence) -> str | None:
    """Say what is wrong with a step of two ranks."""
    hangs = _hangs(seen)
    if hangs:
        return hangs
    if _frozen_moved(seen):
        return FROZEN
    for rank, (got, want) in enumerate(zip(seen["ranks"], expected["ranks"], strict=True)):
        wrong = wrong_update(got["moved"], want["moved"]) or wrong_loss(got["loss"], want["loss"]["value"])
        if wrong:
            return f"rank {rank}: {wrong}"
    return None


class UpdateIsOfBothRanks(Check):
    """All counted targets weigh the same, whichever micro-batch and rank they come from; both ranks update alike."""

    points = 1
    hint = (
        "Which number divides the gradient, and which micro-batch or rank knows it?\n"
        "Call backward() on the sums, add up gradients and counts over the ranks, and divide once, by the joint count."
    )

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        return {name: _together(accumulated_step, seed, case) for name, case in (SAME_WORK | ALONE).items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in SAME_WORK:
            wrong = _wrong(seen[name], expected[name])
            if wrong:
                return f"{name}: {wrong}"
        verdicts = (OLD_GRADIENTS, ANOTHER_LOSS, DIVIDED_RATE, CLIPPED, OWN_STATE, GROUPS)
        for name, verdict in zip(ALONE, verdicts, strict=True):
            if _wrong(seen[name], expected[name]):
                return FROZEN if _frozen_moved(seen[name]) else verdict
        return None


class RanksStayInStep(Check):
    """Ranks with different work make the same all_reduce calls; a step sends each gradient, loss and count once."""

    points = 1
    hint = (
        "Micro-batches, targets and parameters with a gradient may differ between ranks; the calls to all_reduce may "
        "not.\nCall it after the last micro-batch, once for each trainable parameter, zeros where this rank has no "
        "gradient."
    )

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        cases = OTHER_WORK | {EQUAL: SAME_WORK[EQUAL]}
        return {name: _together(accumulated_step, seed, case) for name, case in cases.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in OTHER_WORK:
            got = seen[name]
            wrong = _wrong(got, expected[name])
            if wrong and not _hangs(got) and _wrong(seen[EQUAL], expected[EQUAL]):
                wrong = (
                    f"the calls match, but the step is wrong, just as when both ranks have equal work: see "
                    f"update_is_of_both_ranks first. {wrong[0].upper()}{wrong[1:]}"
                )
            if wrong:
                return f"{name}: {wrong}"
            if max(got["numbers"]) > got["enough"]:
                return (
                    f"{name}: a rank sends {max(got['numbers'])} numbers; the gradients of the trainable parameters, "
                    f"the loss and the count are {got['enough']}. Send them once, after the last micro-batch."
                )
        return None


def _most_rows(profiler: profile) -> int:
    """Return the most rows of features in one matmul, whoever asked for it: one may go past the model's own call.

    The backward pass has its rows in the sum: there the second matrix is not of the weight's shape.
    """
    names = ("aten::mm", "aten::addmm", "aten::bmm")
    matmuls = [event.input_shapes for event in profiler.events() if event.name in names]
    sides = [[shape[-2:] for shape in shapes if len(shape) > 1][-2:] for shapes in matmuls]
    return max((left[0] for left, right in sides if tuple(right) == (FEATURES, HIDDEN)), default=0)


def _alone(_: Tensor) -> None:
    """Add up a tensor over two ranks of which the other has nothing to add."""


def _one_step(accumulated_step: Any, seed: int, rows: int, micro_batch: int) -> Evidence:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x, y = rows_of_classes(rows)
    given = x.clone(), y.clone()
    spy = Spy(model, optimizer)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:  # not a mode: one can leave those
        accumulated_step(model, optimizer, _counted, x, y, micro_batch, _alone)
    return {
        "rows": spy.rows,
        "first": spy.first,
        "largest": _most_rows(profiler),
        "steps": len(spy.gradients),
        "modes": spy.modes,
        "kept": torch.equal(x, given[0]) and torch.equal(y, given[1]),
    }


OUTPUTS = {"a CNN": 10, "a model with large outputs": 2048}  # numbers a row


def _peaks(accumulated_step: Any) -> Evidence:
    """Return peaks beside the batch, by the model and the size of its micro-batches, the largest first."""
    device = pick_device()
    data = digits(device, size=16)
    smallest = 12 + torch.randint(9, ()).item()
    x, y = data.train_x[: 16 * smallest].clone(), data.train_y[: 16 * smallest].clone()
    wide = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.Linear(8, OUTPUTS["a model with large outputs"]))
    peaks: Evidence = {}
    for name, model in {"a CNN": SmallCNN(8).to(device), "a model with large outputs": wide.to(device)}.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        peaks[name] = {}
        for micro_batch in (16 * smallest, 4 * smallest, smallest):
            with MemoryMeter(model, optimizer, by_category=False) as meter:  # torch.func allows nothing else
                accumulated_step(model, optimizer, _counted, x, y, micro_batch, _alone)
            peaks[name][str(micro_batch)] = meter.peak_bytes - x.nbytes - y.nbytes
    return peaks


def _wrong_peak(seen: Evidence, expected: Evidence) -> str | None:
    for model, peaks in expected.items():
        whole_batch, *micro_batches = peaks
        for micro_batch in micro_batches:
            held, enough = seen[model][micro_batch] / 2**20, peaks[micro_batch] / 2**20
            outputs = 4 * int(micro_batch) * OUTPUTS[model] / 2**20  # a name may hold them while backward() runs
            if not held <= 1.2 * enough + outputs:
                whole = peaks[whole_batch] / 2**20
                return (
                    f"With {model} and micro-batches of {micro_batch} the step holds {held:.1f} MiB besides the "
                    f"batch; {enough:.1f} are enough (the whole batch at once: {whole:.1f}). Which outputs, losses or "
                    "graphs of earlier micro-batches are still referenced?"
                )
    return None


class OneMicroBatchAtATime(Check):
    """The model sees one micro-batch after another, in training mode; the optimizer steps once; the peak falls."""

    points = 1
    hint = (
        "Loop over x.split(micro_batch) and y.split(micro_batch), and step after the loop.\nCall backward() for each "
        "micro-batch before the next forward pass, and keep neither losses nor outputs that carry a graph."
    )

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        sizes = ((256, 64), (200, 64), (7, 3), (3, 8))
        seen = {f"{n} by {size}": _one_step(accumulated_step, seed, n, size) for n, size in sizes}
        torch.manual_seed(seed)
        return {"cases": seen, "peaks": _peaks(accumulated_step)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["cases"].items():
            got = seen["cases"][case]
            wrong = wrong_rows(got, want)
            if wrong:
                return f"{case}: {wrong}"
            if not got["largest"] <= want["largest"]:
                return (
                    f"{case}: {got['largest']} rows went through the first layer in one matmul, outside of model(...). "
                    f"At most {want['largest']} may. Compute outputs by calling the model alone."
                )
            if got["steps"] != 1:
                return (
                    f"{case}: the optimizer stepped {got['steps']} times; it should step once, after the last "
                    "micro-batch."
                )
            if not got["kept"]:
                return f"{case}: x or y has changed; leave the batch as it was."
            wrong = wrong_mode(got["modes"])
            if wrong:
                return f"{case}: {wrong}"
        return _wrong_peak(seen["peaks"], expected["peaks"])


STEP = (UpdateIsOfBothRanks, RanksStayInStep, OneMicroBatchAtATime)
