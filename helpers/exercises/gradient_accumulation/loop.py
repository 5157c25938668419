"""Check of the loop that accumulates gradients."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Check, Evidence
from .watched import LEFT_BEFORE, Watched, gradient_of, number, set_gradients, wrong_gradient, wrong_loss

Accumulate = Callable[[nn.Module, Tensor, Tensor, int], Any]
BY_THEIR_NUMBER = (
    "this is the mean of the micro-batches' means, where a row of a small micro-batch weighs more than others. "
    "Did you divide by the number of micro-batches?"
)


def _classifier(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5)).double()


def _rows(n: int) -> tuple[Tensor, Tensor]:
    """Return `n` rows whose losses differ a great deal, so that weighting them wrongly shows."""
    x = torch.randn(n, 12, dtype=torch.float64) * torch.linspace(0.2, 3.0, n, dtype=torch.float64)[:, None]
    return x, torch.randint(5, (n,))


def _accumulated(seed: int, rows: int, micro_batch: int, accumulate: Accumulate, before: float | None = None) -> Any:
    """Accumulate over `rows` rows; return the model with its gradients, what was watched, and what was returned."""
    model = _classifier(seed)
    x, y = _rows(rows)
    watched = Watched(model)
    set_gradients(model, before)
    return model, watched, accumulate(model, x, y, micro_batch)


def _whole(seed: int, rows: int) -> tuple[list[float], float]:
    """Return gradient and mean loss of the whole batch at once."""
    model = _classifier(seed)
    x, y = _rows(rows)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return gradient_of(model), loss.item()


def _mean_of_means(seed: int, rows: int, micro_batch: int) -> list[float]:
    """Return the gradient of dividing by the number of micro-batches, whatever their size."""
    model = _classifier(seed)
    x, y = _rows(rows)
    pieces = list(zip(x.split(micro_batch), y.split(micro_batch), strict=True))
    for xs, ys in pieces:
        (F.cross_entropy(model(xs), ys) / len(pieces)).backward()
    return gradient_of(model)


def _gradients(seed: int, sizes: list[tuple[int, int]], accumulate: Accumulate) -> Evidence:
    return {
        f"{rows} rows in micro-batches of {micro_batch}": {
            "gradient": gradient_of(_accumulated(seed, rows, micro_batch, accumulate)[0]),
            "right": _whole(seed, rows)[0],
            "mistakes": {BY_THEIR_NUMBER: _mean_of_means(seed, rows, micro_batch)},
        }
        for rows, micro_batch in sizes
    }


def _wrong(seen: Evidence, expected: Evidence) -> str | None:
    for case, want in expected.items():
        if wrong := wrong_gradient(seen[case]["gradient"], want["right"], want["mistakes"]):
            return f"{case}: {wrong}"
    return None


class GradientOfTheWholeBatch(Check):
    """The gradient is that of the mean loss over all rows, whatever the size of the micro-batches."""

    hint = (
        "The mean over all rows is not the sum of the micro-batches' means.\n"
        "By what must each micro-batch's mean be multiplied, so that each row weighs 1 / all rows?"
    )

    @staticmethod
    def probe(seed: int, accumulate: Accumulate) -> Evidence:
        micro_batch = random.Random(seed).randint(3, 9)
        return _gradients(seed, [(4 * micro_batch, micro_batch), (40, 40), (40, 1)], accumulate)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class WeighsEachRowTheSame(Check):
    """When the last micro-batch is smaller, every row still weighs the same, and none is left out."""

    hint = (
        "How many rows does the last micro-batch have?\n"
        "A micro-batch's weight is its share of the rows: len(xs) / len(x), not 1 / number of micro-batches."
    )

    @staticmethod
    def probe(seed: int, accumulate: Accumulate) -> Evidence:
        rest = random.Random(seed + 1).randint(1, 6)
        return _gradients(seed + 1, [(24 + rest, 8), (5, 8), (9, 8)], accumulate)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class FeedsMicroBatches(Check):
    """The model sees each row once, in order, and at most `micro_batch` rows at a time."""

    hint = "x.split(micro_batch) gives the pieces; the last one is what is left."

    @staticmethod
    def probe(seed: int, accumulate: Accumulate) -> Evidence:
        seen: Evidence = {}
        for rows, micro_batch in ((24, 8), (21, 8)):
            _, watched, _ = _accumulated(seed + 2, rows, micro_batch, accumulate)
            seen[f"{rows} rows by {micro_batch}"] = {"rows": watched.rows, "first": watched.first}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["rows"] != want["rows"]:
                return f"{case}: the model was called with {got['rows']} rows; {want['rows']} is right."
            if got["first"] != want["first"]:
                return f"{case}: the rows come in another order than they have in the batch."
        return None


class OneGraphAtATime(Check):
    """The backward pass of a micro-batch comes before the forward pass of the next: its activations can go."""

    hint = "Call backward() inside the loop. A sum of losses with one backward() at the end keeps all graphs."

    @staticmethod
    def probe(seed: int, accumulate: Accumulate) -> Evidence:
        _, watched, _ = _accumulated(seed + 3, 24, 8, accumulate)
        alive = most = 0
        for event in watched.order:
            alive += 1 if event == "forward" else -1
            most = max(most, alive)
        return {"most": most, "left": alive}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["most"] > 1:
            return f"{seen['most']} forward passes had run before the first of them was followed by its backward pass."
        if seen["left"]:
            return f"{seen['left']} forward passes were followed by no backward pass."
        return None


class AddsToGradients(Check):
    """Gradients that are there already are added to, not cleared."""

    hint = "Clearing is for whoever calls this: leave .grad alone before the first backward()."

    @staticmethod
    def probe(seed: int, accumulate: Accumulate) -> Evidence:
        model, _, _ = _accumulated(seed + 4, 24, 8, accumulate, LEFT_BEFORE)
        fresh, _, _ = _accumulated(seed + 4, 24, 8, accumulate)
        with_before, without = torch.tensor(gradient_of(model)), torch.tensor(gradient_of(fresh))
        return {"more": [(with_before - without).min().item(), (with_before - without).max().item()]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        low, high = seen["more"]
        if max(abs(low - LEFT_BEFORE), abs(high - LEFT_BEFORE)) < 1e-4:
            return None
        if max(abs(low), abs(high)) < 1e-4:
            return f"All gradients were {LEFT_BEFORE} before the call, and nothing of that is left: they were cleared."
        return f"All gradients were {LEFT_BEFORE} before the call; of that, between {low:.3g} and {high:.3g} is left."


class ReturnsTheMeanLoss(Check):
    """What comes back is the mean loss over all rows, and no graph hangs on it."""

    hint = (
        "Add up the losses that you call backward() on: weighted as they are, their sum is the mean.\n"
        "loss.detach() is the number without the graph."
    )

    @staticmethod
    def probe(seed: int, accumulate: Accumulate) -> Evidence:
        seen: Evidence = {}
        for rows in (24, 21):
            _, _, returned = _accumulated(seed + 5, rows, 8, accumulate)
            seen[f"{rows} rows by 8"] = {"loss": number(returned), "right": _whole(seed + 5, rows)[1]}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            if wrong := wrong_loss(seen[case]["loss"], want["right"]):
                return f"{case}: {wrong}"
        return None


LOOP = (
    GradientOfTheWholeBatch,
    WeighsEachRowTheSame,
    FeedsMicroBatches,
    OneGraphAtATime,
    AddsToGradients,
    ReturnsTheMeanLoss,
)
