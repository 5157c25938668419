"""Checks of part 1: one accumulated step."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from ...core.data import digits
from ...core.device import pick_device
from ...core.models import SmallCNN
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.returned_loss import number, wrong_loss
from .spy import (
    ANOTHER_LOSS,
    CLIPPED,
    DIVIDED_RATE,
    FEATURES,
    FP32,
    HIDDEN,
    OLD_GRADIENTS,
    OWN_STATE,
    Loss,
    Spy,
    classifier,
    leave_gradients,
    rows_of_classes,
    smoothed,
    steep,
    update_since,
    weights,
    wrong_mode,
    wrong_rows,
    wrong_update,
)


@dataclass(frozen=True)
class _Case:
    """What an answer is called with."""

    rows: int
    micro_batch: int
    old_gradients: bool = False
    loss_fn: Loss = F.cross_entropy
    weight_decay: float = 0.0
    momentum: float = 0.0
    steps: int = 1


def _most_rows(profiler: profile) -> int:
    """Return the most rows of features in one product, whoever asked for it: one may go past the model's own call.

    The backward pass has its rows in the sum: there the second matrix is not of the weight's shape.
    """
    names = ("aten::mm", "aten::addmm", "aten::bmm")
    products = [event.input_shapes for event in profiler.events() if event.name in names]
    sides = [[shape[-2:] for shape in shapes if len(shape) > 1][-2:] for shapes in products]
    return max((left[0] for left, right in sides if tuple(right) == (FEATURES, HIDDEN)), default=0)


def _one_step(accumulated_step: Any, seed: int, case: _Case) -> Evidence:
    model, optimizer = classifier(seed, weight_decay=case.weight_decay, momentum=case.momentum)
    x, y = rows_of_classes(case.rows)
    spy = Spy(model, optimizer)
    if case.old_gradients:
        leave_gradients(model)
    before, given = weights(model), (x.clone(), y.clone())
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True
    ) as profiler:  # not a mode: those can be switched off
        for _ in range(case.steps):
            loss = accumulated_step(model, optimizer, case.loss_fn, x, y, case.micro_batch)
    return {
        "rows": spy.rows,
        "first": spy.first,
        "largest": _most_rows(profiler),
        "steps": len(spy.gradients),
        "moved": update_since(before, model),
        "loss": number(loss),
        "modes": spy.modes,
        "kept": torch.equal(x, given[0]) and torch.equal(y, given[1]),
    }


def _regression(accumulated_step: Any, seed: int) -> list[float]:
    """Return the update of a model in FP32 whose inputs are pictures, and whose targets are several numbers a row."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv1d(3, 4, 1), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x, y = torch.randn(20, 3, 4), torch.randn(20, 2)
    before = weights(model)
    accumulated_step(model, optimizer, F.mse_loss, x, y, 8)
    return update_since(before, model)


class UpdateEqualsFullBatch(Check):
    """256 rows in micro-batches of 64 move the weights as one batch of 256 does, to rounding."""

    points = 1
    hint = "The mean over 256 rows is not the sum of four means. What must each micro-batch's loss be multiplied by?"

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        cases = {str(micro_batch): _Case(256, micro_batch) for micro_batch in (64, 32, 256)} | {
            "old gradients": _Case(256, 64, old_gradients=True),
            "another loss": _Case(256, 64, loss_fn=smoothed),
            "weight decay": _Case(256, 64, weight_decay=0.5),
            "steep loss": _Case(256, 64, loss_fn=steep),
            "momentum": _Case(256, 64, momentum=0.9, steps=2),
        }
        moved = {name: _one_step(accumulated_step, seed, case)["moved"] for name, case in cases.items()}
        return moved | {"regression": _regression(accumulated_step, seed)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for micro_batch in ("64", "32", "256"):
            wrong = wrong_update(seen[micro_batch], expected["256"])
            if wrong:
                return f"Micro-batches of {micro_batch}: {wrong}"
        if wrong_update(seen["old gradients"], expected["256"]):
            return OLD_GRADIENTS
        if wrong_update(seen["another loss"], expected["another loss"]):
            return ANOTHER_LOSS
        if wrong_update(seen["weight decay"], expected["weight decay"]):
            return DIVIDED_RATE
        if wrong_update(seen["steep loss"], expected["steep loss"]):
            return CLIPPED
        if wrong_update(seen["momentum"], expected["momentum"]):
            return OWN_STATE
        wrong = wrong_update(seen["regression"], expected["regression"], FP32)
        if wrong:
            return f"FP32, x (20, 3, 4), y (20, 2) and the mean squared error, micro-batches of 8: {wrong}"
        return None


class RaggedLastMicroBatch(Check):
    """When the last micro-batch is smaller, every row still weighs the same."""

    points = 1
    hint = "Weigh each micro-batch by its rows: len(micro-batch) / len(batch), not 1 / number of micro-batches."

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        sizes = ((200, 64), (65, 64), (10, 64), (7, 3))
        return {f"{n} rows by {m}": _one_step(accumulated_step, seed, _Case(n, m))["moved"] for n, m in sizes}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            wrong = wrong_update(seen[case], want)
            if wrong:
                return f"{case}: {wrong}"
        return None


class OneStepOfMicroBatches(Check):
    """The model sees micro-batches only, the optimizer steps once, and the mean loss comes back detached."""

    points = 1
    hint = "Loop over x.split(micro_batch) and y.split(micro_batch); step after the loop; return numbers, not graphs."

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        seen = {}
        for rows, micro_batch in ((256, 64), (200, 64), (7, 3), (3, 8)):
            one = _one_step(accumulated_step, seed, _Case(rows, micro_batch))
            del one["moved"]
            seen[f"{rows} by {micro_batch}"] = one
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            wrong = wrong_rows(got, want)
            if wrong:
                return f"{case}: {wrong}"
            if not got["largest"] <= want["largest"]:
                return f"{case}: {got['largest']} rows went through the first layer at once, past the model's own call."
            if got["steps"] != 1:
                return f"{case}: the optimizer stepped {got['steps']} times."
            if not got["kept"]:
                return f"{case}: x or y has changed; leave the batch as it was."
            wrong = wrong_mode(got["modes"]) or wrong_loss(got["loss"], want["loss"]["value"])
            if wrong:
                return f"{case}: {wrong}"
        return None


OUTPUTS = {"a CNN": 10, "a model with large outputs": 2048}  # numbers a row


class MemoryFallsToTheMicroBatch(Check):
    """The peak is that of a micro-batch plus the gradients, not that of the whole batch."""

    points = 1
    hint = (
        "Call backward() for each micro-batch before the next forward pass, so that its activations are let go; "
        "keep neither losses nor outputs that carry a graph."
    )

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        torch.manual_seed(seed)
        device = pick_device()
        data = digits(device, size=16)
        smallest = 12 + torch.randint(9, ()).item()
        x, y = data.train_x[: 16 * smallest].clone(), data.train_y[: 16 * smallest].clone()
        wide = nn.Sequential(nn.Flatten(), nn.Linear(256, 8), nn.Linear(8, OUTPUTS["a model with large outputs"]))
        models = {"a CNN": SmallCNN(8).to(device), "a model with large outputs": wide.to(device)}
        seen: Evidence = {}
        for name, model in models.items():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            seen[name] = {}
            for micro_batch in (16 * smallest, 4 * smallest, smallest):
                with MemoryMeter(model, optimizer, by_tenant=False) as meter:  # torch.func allows nothing else
                    accumulated_step(model, optimizer, F.cross_entropy, x, y, micro_batch)
                seen[name][str(micro_batch)] = meter.peak_bytes - x.nbytes - y.nbytes
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for model, peaks in expected.items():
            whole_batch, *micro_batches = peaks
            for micro_batch in micro_batches:
                held, enough = seen[model][micro_batch] / 2**20, peaks[micro_batch] / 2**20
                outputs = 4 * int(micro_batch) * OUTPUTS[model] / 2**20  # a name may hold them while backward() runs
                if not held <= 1.2 * enough + outputs:
                    whole = peaks[whole_batch] / 2**20
                    return (
                        f"With {model} and micro-batches of {micro_batch} the step holds {held:.1f} MiB beside the "
                        f"batch; {enough:.1f} are enough (the whole batch at once: {whole:.1f})."
                    )
        return None


STEP = (UpdateEqualsFullBatch, RaggedLastMicroBatch, OneStepOfMicroBatches, MemoryFallsToTheMicroBatch)
