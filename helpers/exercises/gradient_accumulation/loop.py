"""Check of the loop that accumulates gradients."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Check, Evidence
from .watched import (
    LEFT_BEFORE,
    Adds,
    Answer,
    Feeds,
    Frees,
    Leaves,
    ReturnsALoss,
    accumulated,
    deep,
    gradient_of,
    peaks,
    wrong_gradients,
)

BY_THEIR_NUMBER = (
    "this is the mean of the micro-batches' means, where a row of a small micro-batch weighs more than others. "
    "Did you divide by the number of micro-batches?"
)


def _classifier(seed: int, hidden: int = 16, classes: int = 5) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, hidden), nn.Tanh(), nn.Linear(hidden, classes)).double()


def _rows(seed: int, n: int, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Return `n` rows whose losses differ a great deal, so that weighting them wrongly shows."""
    torch.manual_seed(seed + n)
    x = torch.randn(n, 12, dtype=torch.float64) * torch.linspace(0.2, 3.0, n, dtype=torch.float64)[:, None]
    return x, torch.randint(classes, (n,))


def _whole(seed: int, rows: int, micro_batch: int) -> Evidence:
    """Return gradient and mean loss of the whole batch at once, and the gradient of the means' mean."""
    x, y = _rows(seed, rows)
    model, mistaken = _classifier(seed), _classifier(seed)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    pieces = list(zip(x.split(micro_batch), y.split(micro_batch), strict=True))
    for xs, ys in pieces:
        (F.cross_entropy(mistaken(xs), ys) / len(pieces)).backward()
    return {"gradient": gradient_of(model), "loss": loss.item(), "mistakes": {BY_THEIR_NUMBER: gradient_of(mistaken)}}


def _sizes(seed: int) -> dict[str, list[tuple[int, int]]]:
    """Return (rows, micro_batch) of the cases: micro-batches of one size, and a smaller one at the end."""
    rng = random.Random(seed)
    size, rest = rng.randint(3, 9), rng.randint(1, 6)
    return {"equal": [(4 * size, size), (40, 40), (40, 1)], "smaller": [(24 + rest, 8), (5, 8), (9, 8)]}


def observe(seed: int, accumulate: Answer) -> Evidence:
    """Accumulate over batches of several sizes, once more on top of gradients, and under the meter."""
    seen: Evidence = {"runs": {}, "whole": {}}
    for kind, sizes in _sizes(seed).items():
        seen["runs"][kind] = {}
        for rows, micro_batch in sizes:
            case = f"{rows} rows in micro-batches of {micro_batch}"
            run = accumulated(_classifier(seed), _rows(seed, rows), micro_batch, accumulate)
            seen["runs"][kind][case] = run
            seen["whole"][case] = _whole(seed, rows, micro_batch)
    for name, before in (("added to", LEFT_BEFORE), ("added to nothing", None)):
        seen[name] = accumulated(_classifier(seed), _rows(seed, 21), 8, accumulate, before)["gradient"]

    def large(rows: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        return deep(nn.Linear(12, 64), 64, nn.Linear(64, 40)), _rows(seed, rows, 40)

    return seen | {"peaks": peaks(large, 64, accumulate)}


class GradientOfTheWholeBatch(Check):
    """The gradient is that of the mean loss over all rows, whatever the size of the micro-batches."""

    hint = (
        "The mean over all rows is not the sum of the micro-batches' means.\n"
        "By what must each micro-batch's mean be multiplied, so that each row weighs 1 / (number of all rows)?"
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_gradients(seen, expected, "equal")


class WeighsEachRowTheSame(Check):
    """When the last micro-batch is smaller, every row still has the same weight, and none is left out."""

    hint = (
        "How many rows does the last micro-batch have?\n"
        "A micro-batch's weight is its share of the rows: len(xs) / len(x), not 1 / number of micro-batches."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_gradients(seen, expected, "smaller")


class FeedsMicroBatches(Feeds):
    """The model sees each row once, in order, and at most `micro_batch` rows at a time."""

    hint = "x.split(micro_batch) gives the pieces; the last one is what is left."
    probe = staticmethod(observe)


class OneGraphAtATime(Frees):
    """The backward pass of a micro-batch comes before the next forward pass, and nothing large from it is kept."""

    hint = (
        "Call backward() inside the loop. A sum of losses with one backward() at the end keeps all graphs.\n"
        "For the sum, keep only the loss's value: loss.detach()."
    )
    probe = staticmethod(observe)


class AddsToGradients(Adds):
    """Existing gradients are added to, not cleared."""

    hint = "Clearing is up to the caller: leave .grad alone before the first backward()."
    probe = staticmethod(observe)


class ReturnsTheMeanLoss(ReturnsALoss):
    """The function returns the mean loss over all rows, without a graph."""

    hint = (
        "Add up the losses that you call backward() on: weighted as they are, their sum is the mean.\n"
        "loss.detach() is the number without the graph."
    )
    probe = staticmethod(observe)


class ChangesNothingElse(Leaves):
    """The weights, the rows and the model's mode stay as they were."""

    hint = "The optimizer's step, and `model.train()`, are up to the caller as well."
    probe = staticmethod(observe)


LOOP = (
    GradientOfTheWholeBatch,
    WeighsEachRowTheSame,
    FeedsMicroBatches,
    OneGraphAtATime,
    AddsToGradients,
    ReturnsTheMeanLoss,
    ChangesNothingElse,
)
