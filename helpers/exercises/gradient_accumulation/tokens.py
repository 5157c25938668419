"""Check of the loop that accumulates gradients and weighs by tokens."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.models import SmallGPT
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
    cases,
    deep,
    gradient_of,
    peaks,
    wrong_gradients,
)

IGNORED = -100  # target of a position that does not count, as in F.cross_entropy
MEAN_OF_MEANS = (
    "this is the mean of the micro-batches' means: a token gets more weight if few others in its micro-batch count."
)
ZERO_LEFT_OUT = "the divisor is the number of targets above 0. A target of 0 counts; only -100 does not."


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = SmallGPT(vocabulary=11, context=12, layers=1, width=16, heads=2).double()
    with torch.no_grad():
        model.head.weight.mul_(20)  # large logits: losses differ from token to token, so that wrong weights show
    return model


def _batch(seed: int, counts: list[int], vocabulary: int = 11) -> tuple[Tensor, Tensor]:
    """Return ids and targets (rows, 12), where of each row as many targets count as `counts` says, anywhere in it."""
    generator = torch.Generator().manual_seed(seed)
    ids, targets = (torch.randint(vocabulary, (len(counts), 12), generator=generator) for _ in range(2))
    place = torch.rand(len(counts), 12, generator=generator).argsort().argsort()
    return ids, targets.masked_fill(place >= torch.tensor(counts)[:, None], IGNORED)


def _whole(seed: int, counts: list[int], micro_batch: int) -> Evidence:
    """Return gradient and mean loss of the whole batch at once, and the gradients of two well-known mistakes."""
    ids, targets = _batch(seed, counts)
    model, mistaken = _model(seed), _model(seed)
    loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    loss.backward()
    for xs, ys in zip(ids.split(micro_batch), targets.split(micro_batch), strict=True):
        if (ys != IGNORED).any():
            (F.cross_entropy(mistaken(xs).flatten(0, 1), ys.flatten()) * len(xs) / len(ids)).backward()
    above = (targets != IGNORED).sum() / (targets > 0).sum().clamp(min=1)
    right = gradient_of(model)
    mistakes = {MEAN_OF_MEANS: gradient_of(mistaken), ZERO_LEFT_OUT: [above.item() * number for number in right]}
    return {"gradient": right, "loss": loss.item(), "mistakes": mistakes}


def _cases(seed: int) -> dict[str, dict[str, tuple[list[int], int]]]:
    """Return (targets that count in each row, micro_batch) of the cases, by name."""
    rng = random.Random(seed)
    some = [rng.randint(1, 12) for _ in range(4)]
    return {
        "full": {
            "all rows are full": ([12] * 8, 4),
            "rows sorted by length": (sorted(rng.randint(1, 12) for _ in range(12)), 4),
            "micro-batches of three, the last has one row": ([rng.randint(1, 12) for _ in range(10)], 3),
            "a micro-batch larger than the batch": ([rng.randint(1, 12) for _ in range(5)], 8),
        },
        "empty": {
            "the first of three micro-batches has no target that counts": ([0] * 4 + some * 2, 4),
            "the last of three micro-batches has no target that counts": (some * 2 + [0] * 4, 4),
            "a single target counts": ([0] * 5 + [1] + [0] * 2, 4),
        },
    }


def observe(seed: int, accumulate_tokens: Answer) -> Evidence:
    """Accumulate over batches of several kinds, once more on top of gradients, and under the meter."""
    seen: Evidence = {"runs": {}, "whole": {}}
    for kind, of_kind in _cases(seed).items():
        seen["runs"][kind] = {}
        for case, (counts, micro_batch) in of_kind.items():
            run = accumulated(_model(seed), _batch(seed, counts), micro_batch, accumulate_tokens)
            seen["runs"][kind][case] = run
            seen["whole"][case] = _whole(seed, counts, micro_batch)
    batch = _batch(seed, [12, 5, 7, 12, 3, 9, 12, 4])
    for name, before in (("added to", LEFT_BEFORE), ("added to nothing", None)):
        seen[name] = accumulated(_model(seed), batch, 4, accumulate_tokens, before)["gradient"]

    def large(rows: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        model = deep(nn.Embedding(96, 64), 64, nn.Linear(64, 96))
        return model, _batch(seed, [12, 1, 7] * (rows // 3), 96)

    return seen | {"peaks": peaks(large, 6, accumulate_tokens)}


class EveryTokenWeighsTheSame(Check):
    """Each target that counts has the same weight, whichever micro-batch it is in."""

    hint = (
        "F.cross_entropy takes the mean over the targets that count in the micro-batch. How many count in all?\n"
        "reduction='sum' adds the losses of the targets that count; divide by their number in the whole batch."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_gradients(seen, expected, "full")


class ToleratesEmptyMicroBatches(Check):
    """A micro-batch in which no target counts adds nothing to the gradient or the loss."""

    hint = "The mean over no targets is 0 / 0, which is NaN; a sum over none is 0."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if wrong := wrong_gradients(seen, expected, "empty"):
            return wrong
        for kind, case in cases(expected, "empty"):
            value = seen["runs"][kind][case]["loss"].get("value", 0.0)
            if value != value:
                return f"{case}: the loss that you return is NaN. Does a mean over no targets go into it?"
        return None


class FeedsMicroBatches(Feeds):
    """The model sees each row once, in order, and at most `micro_batch` at a time."""

    hint = "As in the first task: split both. A batch smaller than `micro_batch` is one micro-batch."
    probe = staticmethod(observe)


class OneGraphAtATime(Frees):
    """The backward pass of a micro-batch comes before the next forward pass, and nothing large from it is kept."""

    hint = (
        "As in the first task: call backward() inside the loop.\n"
        "The sum needs only the value of each loss: part.detach(). Logits in a list stay in memory until the end."
    )
    probe = staticmethod(observe)


class AddsToGradients(Adds):
    """Existing gradients are added to, not cleared."""

    hint = "Clearing is up to the caller."
    probe = staticmethod(observe)


class ReturnsTheMeanLoss(ReturnsALoss):
    """The function returns the mean loss over all targets that count, without a graph."""

    hint = "Add up the losses that you call backward() on, each one detached."
    probe = staticmethod(observe)


class ChangesNothingElse(Leaves):
    """The weights, the tokens and the model's mode stay as they were."""

    hint = "Replace values only in copies: `targets.clamp(min=0)` makes one, `targets.clamp_(min=0)` does not."
    probe = staticmethod(observe)


TOKENS = (
    EveryTokenWeighsTheSame,
    ToleratesEmptyMicroBatches,
    FeedsMicroBatches,
    OneGraphAtATime,
    AddsToGradients,
    ReturnsTheMeanLoss,
    ChangesNothingElse,
)
