"""Check of a batch that is augmented in one call.

Every pixel of image k is 1,000 k, and the probe's `rotate` adds an image's angle to its pixels. So each image of a
batch says itself which one it is and by how much it was rotated.
"""

import random
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..base import Check, Evidence
from ..probing.plain import plain

MOST = 20.0  # degrees, either way
IMAGES, APART = 300, 1000.0  # so many images, and the distance between the pixels of one and the next
SPREAD = MOST / 3**0.5  # the standard deviation of angles that are uniform
ROOM = 0.2  # relative, for the spread of a few hundred angles
TREND = 0.35  # correlation with the position: that of 200 independent angles exceeds it once in a million batches

Finished = Callable[[Tensor, Tensor, list[int], Callable[[Tensor, Tensor], Tensor]], Any]


class _Rotate:
    """Adds each image's angle to its pixels, and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, images: Tensor, degrees: Tensor) -> Tensor:
        self.calls += 1
        if images.ndim != 4 or tuple(degrees.shape) != (len(images),):
            raise ValueError(
                f"rotate takes images (B, 1, H, W) and degrees (B,), not {tuple(images.shape)} and "
                f"{tuple(degrees.shape)}."
            )
        return images + degrees.view(-1, 1, 1, 1)


def _data() -> tuple[Tensor, Tensor]:
    images = APART * torch.arange(IMAGES, dtype=torch.float64).view(-1, 1, 1, 1).expand(-1, 1, 2, 3)
    return images.clone(), torch.arange(IMAGES)


def _angles(images: Tensor) -> tuple[list[int], list[float]]:
    """Return which image each one of a batch is, and its angle."""
    pixels = images[:, 0, 0, 0]
    numbers = (pixels / APART).round()
    return numbers.long().tolist(), (pixels - APART * numbers).tolist()


def _batches(seed: int, finished_batch: Finished) -> Evidence:
    """Make batches of different sizes, one of them twice; return what they are, and what became of the data."""
    rng = random.Random(seed)
    many = [rng.randrange(IMAGES) for _ in range(200)]  # some come twice, as with replacement
    seen: Evidence = {"batches": []}
    (images, labels), (before, names) = _data(), _data()
    for indices in (many, many, rng.sample(range(IMAGES), 5), [rng.randrange(1, IMAGES)]):
        rotate = _Rotate()
        batch = finished_batch(images, labels, list(indices), rotate)
        if not (isinstance(batch, tuple) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)):
            parts = [type(part).__name__ for part in batch] if isinstance(batch, tuple) else []
            return {"returned": type(batch).__name__, "parts": parts}
        got, theirs = map(plain, batch)
        if tuple(got.shape) != (len(indices), *images.shape[1:]) or tuple(theirs.shape) != (len(indices),):
            return {"shapes": [list(got.shape), list(theirs.shape)], "count": len(indices)}
        which, degrees = _angles(got)
        seen["batches"].append(
            {
                "indices": list(indices),
                "images": which,
                "labels": theirs.tolist(),
                "degrees": degrees,
                "calls": rotate.calls,
                "changed": not (torch.equal(images, before) and torch.equal(labels, names)),
            }
        )
        images.copy_(before)  # whatever an answer changed costs the next batch nothing
        labels.copy_(names)
    return seen


class InOrder(Check):
    """A batch is a tuple of the images and the labels of the indices, in their order."""

    compared = False
    hint = (
        "A tensor takes a list of indices: what is labels[[3, 1, 1]]?\n"
        "Return a tuple of two tensors, with as many images and labels as there are indices."
    )
    probe = staticmethod(_batches)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "returned" in seen:
            of = f" of {', '.join(seen['parts'])}" if seen["parts"] else ""
            return f"The function returns a {seen['returned']}{of}; expected a tuple (images, labels) of tensors."
        if "shapes" in seen:
            images, labels = (tuple(shape) for shape in seen["shapes"])
            return f"{seen['count']} indices gave images {images} and labels {labels}. Both need one entry per index."
        for batch in seen["batches"]:
            for what in ("images", "labels"):
                if batch[what] != batch["indices"]:
                    if not batch["calls"]:
                        return "The function does not call the `rotate` that it is given."
                    pairs = enumerate(zip(batch["indices"], batch[what], strict=True))
                    at, (index, got) = next(pair for pair in pairs if pair[1][0] != pair[1][1])
                    return f"Entry {at} of a batch: index {index} gave number {got} of the data set's {what}."
        return None


class AnAngleEach(Check):
    """Each image is rotated by an angle of its own from -20 to 20 degrees, a new one in every call."""

    compared = False
    after = ("in_order",)
    hint = (
        "How many random numbers does a batch of B images need?\n"
        "torch.rand(B) draws from 0 to 1. Which factor and which shift make it -20 to 20?"
    )
    probe = staticmethod(_batches)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        first, second, *_ = (batch["degrees"] for batch in seen["batches"])
        if not any(first):
            return "The images are not rotated. Return what `rotate` returns."
        if len(set(first)) < 0.9 * len(first):
            return (
                f"{len(first)} images were rotated by only {len(set(first))} different angles. Each needs its own, "
                "even where an index comes twice."
            )
        if set(first) & set(second):
            return "A second batch of the same indices has angles of the first one. Draw new ones in every call."
        trend = statistics.correlation(range(len(first)), first)
        if not abs(trend) <= TREND:
            return (
                f"The angles depend on the position in the batch: their correlation with it is {trend:.2f}. Draw each "
                "image's angle independently."
            )
        degrees = [each for batch in seen["batches"] for each in batch["degrees"]]
        low, high = min(degrees), max(degrees)
        if not (low >= -MOST - 1e-6 and high <= MOST + 1e-6):
            return f"Angles lie between {low:.1f} and {high:.1f} degrees; expected -20 to 20."
        if not (low < -0.8 * MOST and high > 0.8 * MOST and abs(statistics.pstdev(degrees) / SPREAD - 1) <= ROOM):
            return (
                f"Angles lie between {low:.1f} and {high:.1f} degrees, with a standard deviation of "
                f"{statistics.pstdev(degrees):.1f}; uniform ones from -20 to 20 would have {SPREAD:.1f}."
            )
        return None


class OneCall(Check):
    """`rotate` is called once per batch."""

    compared = False
    after = ("in_order",)
    hint = "`rotate` takes all images of the batch and all angles at once. Select the images first."
    probe = staticmethod(_batches)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for batch in seen["batches"]:
            if batch["calls"] != 1:
                return f"`rotate` was called {batch['calls']} times for a batch of {len(batch['indices'])} images."
        return None


class FromTorchsGenerator(Check):
    """The angles come from PyTorch's global generator: the same seed gives the same angles again."""

    compared = False
    after = ("in_order",)
    hint = (
        "Which of the four sources of section 3 does `torch.manual_seed` restart?\n"
        "Draw the angles with torch.rand, without a generator of your own."
    )

    @staticmethod
    def probe(seed: int, finished_batch: Finished) -> Evidence:
        def angles(torchs: int, others: int) -> list[float]:
            torch.manual_seed(torchs)
            random.seed(others)
            np.random.seed(others)
            images, labels = _data()
            batch = finished_batch(images, labels, list(range(50)), _Rotate())
            right = isinstance(batch, tuple) and isinstance(batch[0], Tensor) and batch[0].ndim == images.ndim
            return _angles(batch[0])[1] if right else []

        kept, numpys = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng():
                runs = [angles(seed, 1), angles(seed, 2), angles(seed + 1, 2)]
        finally:
            random.setstate(kept)
            np.random.set_state(numpys)
        return {"again": runs[0] == runs[1], "other": runs[1] != runs[2]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["again"]:
            return "After torch.manual_seed with the same seed, the angles differ. Where do they come from?"
        if not seen["other"]:
            return "Two different seeds for torch.manual_seed gave the same angles. Where do they come from?"
        return None


class KeepsTheOriginals(Check):
    """The images and labels of the data set are not changed."""

    compared = False
    after = ("in_order",)
    hint = "Write to no part of `images`: images[indices] is a copy, so give that one to `rotate`."
    probe = staticmethod(_batches)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if any(batch["changed"] for batch in seen["batches"]):
            return "The data set's own images or labels have changed. The next epoch would augment them a second time."
        return None


BATCHES = (InOrder, AnAngleEach, OneCall, FromTorchsGenerator, KeepsTheOriginals)
