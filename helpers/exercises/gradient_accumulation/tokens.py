"""Check of the loop that accumulates gradients and weighs by tokens."""

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.models import SmallGPT
from ..base import Check, Evidence
from .watched import LEFT_BEFORE, Watched, gradient_of, number, set_gradients, wrong_gradient, wrong_loss

AccumulateTokens = Callable[[nn.Module, Tensor, Tensor, int], Any]
IGNORED = -100  # target of a position that does not count, as in F.cross_entropy
MEAN_OF_MEANS = "this is the mean of the micro-batches' means: a token weighs more where few others count beside it."
ZERO_LEFT_OUT = "the divisor is the number of targets above 0. A target of 0 is a token like any other; -100 is none."


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = SmallGPT(vocabulary=11, context=12, layers=1, width=16, heads=2).double()
    with torch.no_grad():
        model.head.weight.mul_(20)  # large logits: losses differ from token to token, so that wrong weights show
    return model


def _batch(seed: int, lengths: list[int]) -> tuple[Tensor, Tensor]:
    """Return ids and targets (rows, 12), where of each row as many targets count as `lengths` says."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(11, (len(lengths), 12), generator=generator)
    targets = torch.randint(11, (len(lengths), 12), generator=generator)
    for row, length in enumerate(lengths):
        targets[row, length:] = IGNORED
    return ids, targets


def _accumulated(seed: int, lengths: list[int], answer: AccumulateTokens, before: float | None = None) -> Any:
    """Accumulate in micro-batches of four rows; return the model, what was watched, and what was returned."""
    model = _model(seed)
    watched = Watched(model)
    set_gradients(model, before)
    return model, watched, answer(model, *_batch(seed, lengths), 4)


def _whole(seed: int, lengths: list[int]) -> tuple[list[float], float]:
    model = _model(seed)
    ids, targets = _batch(seed, lengths)
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()
    return gradient_of(model), loss.item()


def _mistakes(seed: int, lengths: list[int]) -> dict[str, list[float]]:
    """Return the gradients of two well-known mistakes, by what to say of them."""
    model = _model(seed)
    ids, targets = _batch(seed, lengths)
    for xs, ys in zip(ids.split(4), targets.split(4), strict=True):
        if (ys != IGNORED).any():
            (F.cross_entropy(model(xs).flatten(0, 1), ys.flatten()) * len(xs) / len(ids)).backward()
    positive = (targets != IGNORED).sum() / (targets > 0).sum()
    return {
        MEAN_OF_MEANS: gradient_of(model),
        ZERO_LEFT_OUT: (positive * torch.tensor(_whole(seed, lengths)[0], dtype=torch.float64)).tolist(),
    }


def _gradients(seed: int, cases: dict[str, list[int]], answer: AccumulateTokens) -> Evidence:
    return {
        case: {
            "gradient": gradient_of(_accumulated(seed, lengths, answer)[0]),
            "right": _whole(seed, lengths)[0],
            "mistakes": _mistakes(seed, lengths),
        }
        for case, lengths in cases.items()
    }


def _wrong(seen: Evidence, expected: Evidence) -> str | None:
    for case, want in expected.items():
        if wrong := wrong_gradient(seen[case]["gradient"], want["right"], want["mistakes"]):
            return f"{case}: {wrong}"
    return None


class EveryTokenWeighsTheSame(Check):
    """Each target that counts weighs the same, whichever micro-batch it lies in."""

    hint = (
        "F.cross_entropy takes the mean over the targets that count in the micro-batch. How many count in all?\n"
        "reduction='sum' adds the losses of the targets that count; divide by their number in the whole batch."
    )

    @staticmethod
    def probe(seed: int, accumulate_tokens: AccumulateTokens) -> Evidence:
        rng = random.Random(seed)
        cases = {
            "all rows are full": [12] * 8,
            "rows sorted by length": sorted(rng.randint(1, 12) for _ in range(12)),
            "the last micro-batch has two rows": [rng.randint(1, 12) for _ in range(10)],
        }
        return _gradients(seed, cases, accumulate_tokens)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class BearsEmptyMicroBatches(Check):
    """A micro-batch in which no target counts adds nothing, to the gradient and to the loss."""

    hint = "The mean over no targets is 0 / 0, which is NaN; a sum over none is 0."

    @staticmethod
    def probe(seed: int, accumulate_tokens: AccumulateTokens) -> Evidence:
        rng = random.Random(seed + 1)
        some = [rng.randint(1, 12) for _ in range(4)]
        cases = {"the first of three has none": [0] * 4 + some * 2, "the last of three has none": some * 2 + [0] * 4}
        loss = number(_accumulated(seed + 1, some + [0] * 4, accumulate_tokens)[2])
        value = loss.get("value", 0.0)
        return {"gradients": _gradients(seed + 1, cases, accumulate_tokens), "no number": math.isnan(value)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if wrong := _wrong(seen["gradients"], expected["gradients"]):
            return wrong
        return "the last of two has none: the loss that you return is no number (NaN)." if seen["no number"] else None


class FeedsMicroBatches(Check):
    """The model sees each row once, in order, at most `micro_batch` at a time, each with its backward pass at once."""

    hint = "As in the first task: split both, and call backward() inside the loop."

    @staticmethod
    def probe(seed: int, accumulate_tokens: AccumulateTokens) -> Evidence:
        _, watched, _ = _accumulated(seed + 2, [12, 5, 7, 12, 3, 9, 12, 4, 6, 8], accumulate_tokens)
        return {"rows": watched.rows, "first": watched.first, "order": watched.order}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["rows"] != expected["rows"]:
            return f"10 rows by 4: the model was called with {seen['rows']} rows; {expected['rows']} is right."
        if seen["first"] != expected["first"]:
            return "10 rows by 4: the rows come in another order than they have in the batch."
        if seen["order"] != expected["order"]:
            return "10 rows by 4: backward passes do not follow their forward passes one by one."
        return None


class AddsToGradients(Check):
    """Gradients that are there already are added to, not cleared."""

    hint = "Clearing is for whoever calls this."

    @staticmethod
    def probe(seed: int, accumulate_tokens: AccumulateTokens) -> Evidence:
        lengths = [12, 5, 7, 12, 3, 9, 12, 4]
        found = [
            torch.tensor(gradient_of(_accumulated(seed + 3, lengths, accumulate_tokens, before)[0]))
            for before in (LEFT_BEFORE, None)
        ]
        return {"off": (found[0] - found[1] - LEFT_BEFORE).abs().max().item()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["off"] < 1e-4:
            return None
        return f"All gradients were {LEFT_BEFORE} before the call; what was added to them is not what it should be."


class ReturnsTheMeanLoss(Check):
    """What comes back is the mean loss over all targets that count, and no graph hangs on it."""

    hint = "The sum of what you call backward() on, each one detached."

    @staticmethod
    def probe(seed: int, accumulate_tokens: AccumulateTokens) -> Evidence:
        seen: Evidence = {}
        for case, lengths in (("all rows are full", [12] * 8), ("rows differ", [12, 1, 2, 12, 3, 9, 12, 4, 6, 8])):
            _, _, returned = _accumulated(seed + 4, lengths, accumulate_tokens)
            seen[case] = {"loss": number(returned), "right": _whole(seed + 4, lengths)[1]}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            if wrong := wrong_loss(seen[case]["loss"], want["right"]):
                return f"{case}: {wrong}"
        return None


TOKENS = (
    EveryTokenWeighsTheSame,
    BearsEmptyMicroBatches,
    FeedsMicroBatches,
    AddsToGradients,
    ReturnsTheMeanLoss,
)
