"""Check of the cross-entropy of a large vocabulary whose logits never exist as a whole."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from .loss_evidence import drawn, evidence, numbers, what_is_wrong
from .loss_memory import LogitsNeverWhole
from .watcher import LogitsWatcher

IGNORED = -100
Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]


class MatchesTheWholeLogits(Check):
    """Loss and gradients are those of F.cross_entropy on all logits, whatever the chunk and whatever comes after."""

    hint = (
        "Which factor does backward() receive, and where do you divide by the number of rows that count?\n"
        "The gradient of a row's logits is (softmax - one at its label) / rows that count.\n"
        "Sum losses and gradients over chunks, divide once, and multiply by the gradient that backward() receives."
    )

    @staticmethod
    def probe(seed: int, chunked_cross_entropy: Loss) -> Evidence:
        seen: Evidence = {}
        for case, rows, chunk in (("48 rows by 16", 48, 16), ("50 rows by 16", 50, 16), ("9 rows by 64", 9, 64)):
            hidden, weight, labels = drawn(seed, rows, 6, 11)
            loss = chunked_cross_entropy(hidden, weight, labels, chunk)
            if isinstance(loss, Tensor) and loss.requires_grad:
                loss.backward()
            seen[case] = evidence(loss, hidden, weight)
        hidden, weight, labels = drawn(seed, 48, 6, 11)
        with torch.no_grad():
            hidden *= 80  # exp of such logits is infinite in FP32
        loss = chunked_cross_entropy(hidden, weight, labels, 16)
        if isinstance(loss, Tensor) and loss.requires_grad:
            loss.backward()
        seen["logits of hundreds"] = evidence(loss, hidden, weight)
        hidden, weight, labels = drawn(seed + 1, 40, 6, 11)
        for case in ("in the middle of a graph", "two losses, then one backward pass", "frozen weight"):
            hidden.grad = weight.grad = None
            weight.requires_grad_(case != "frozen weight")
            loss = 3.5 * chunked_cross_entropy(2 * hidden, weight, labels, 16)
            if case.startswith("two"):
                loss = loss + chunked_cross_entropy(hidden, weight, labels.flip(0), 7)
            if isinstance(loss, Tensor) and loss.requires_grad:
                loss.backward()
            seen[case] = evidence(loss, hidden, weight)
        hidden.grad = weight.grad = None
        weight.requires_grad_()
        with torch.no_grad():
            loss = chunked_cross_entropy(hidden, weight, labels, 16)
        seen["under no_grad"] = evidence(loss, hidden, weight)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            wrong = what_is_wrong(seen[case], want, 1e-4)
            if wrong:
                return f"{case}: {wrong}"
        return None


class IgnoredRowsCountForNothing(Check):
    """Rows labeled -100 add nothing to the loss, to the count or to a gradient; with no other row, the loss is 0."""

    hint = (
        "Which rows count, in one chunk and in all chunks together?\n"
        "Divide by the number of labels that are not -100, over all chunks together, or by 1 if there are none. "
        "A row that is ignored has a gradient of zeros."
    )

    @staticmethod
    def probe(seed: int, chunked_cross_entropy: Loss) -> Evidence:
        seen: Evidence = {}
        cases = {
            "15 of the first 16 rows ignored": list(range(15)),
            "a whole chunk ignored": list(range(16, 32)),
            "every third row ignored": list(range(0, 50, 3)),
            "all rows ignored": list(range(50)),
        }
        for case, ignored in cases.items():
            hidden, weight, labels = drawn(seed + 2, 50, 6, 11)
            labels[ignored] = IGNORED
            given = labels.clone()
            loss = chunked_cross_entropy(hidden, weight, labels, 16)
            if isinstance(loss, Tensor) and loss.requires_grad:
                loss.backward()
            seen[case] = evidence(loss, hidden, weight) | {"untouched": torch.equal(labels, given)}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            if not seen[case].get("untouched", True):
                return f"{case}: the labels that you were given have changed; work on a copy."
            if case.startswith("all") and seen[case].get("hidden") is None and "returned" not in seen[case]:
                return f"{case}: backward() should give gradients of zeros; there are none."
            wrong = what_is_wrong(seen[case], want, 1e-4)
            if wrong:
                return f"{case}: {wrong}"
        return None


_MANY_ROWS = "torch.float16, 16,384 rows, a vocabulary of 2,048"


def _whole(hidden: list[float], weight: list[float], labels: list[int], upstream: float, dtype: str) -> Evidence:
    """Return the evidence of all logits at once, in FP32, for inputs (N x 16) and (64 x 16) of this `dtype`."""
    kind = getattr(torch, dtype.removeprefix("torch."))
    x, w = (torch.tensor(numbers).view(-1, 16).to(kind).requires_grad_() for numbers in (hidden, weight))
    loss = F.cross_entropy(x.float() @ w.float().t(), torch.tensor(labels))
    (upstream * loss).backward()
    return evidence(loss, x, w)


class SumsInFullPrecision(Check):
    """In 16 bits, softmax, loss and sums over chunks are FP32, the division last; gradients have the inputs' type."""

    hint = (
        "Which sum adds many small numbers to a large one? That sum must be FP32.\n"
        "Cast each chunk's logits to FP32 before the softmax; add up loss and gradients in FP32 tensors, undivided; "
        "multiply by upstream / count, and cast to the inputs' type once, at the end."
    )

    @staticmethod
    def probe(seed: int, chunked_cross_entropy: Loss) -> Evidence:
        seen: Evidence = {}
        for dtype, upstream in ((torch.bfloat16, 1.0), (torch.float16, 2.0**12)):
            hidden, weight, labels = drawn(seed + 3, 768, 16, 64, dtype)
            with torch.no_grad():
                hidden += 1  # so that the parts of each sum are alike, and a short sum stops growing
                labels[:] = labels % 4
            with LogitsWatcher(16, 64) as watcher:
                loss = chunked_cross_entropy(hidden, weight, labels, 3)
                if isinstance(loss, Tensor) and loss.requires_grad:
                    (upstream * loss).backward()
            seen[str(dtype)] = evidence(loss, hidden, weight) | {
                "short": watcher.short,
                "inputs": [numbers(hidden), numbers(weight), labels.tolist()],
                "upstream": upstream,
            }
        hidden, weight, labels = drawn(seed + 3, 2**14, 4, 2048, torch.float16)  # probabilities of 1/2048
        loss = chunked_cross_entropy(hidden, weight, labels, 1024)
        if isinstance(loss, Tensor) and loss.requires_grad:
            (2.0**12 * loss).backward()
        seen[_MANY_ROWS] = numbers(weight.grad)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for dtype, want in expected.items():
            if dtype == _MANY_ROWS:
                continue
            got, right = seen[dtype], _whole(*want["inputs"], want["upstream"], dtype)
            if got.get("dtype") != right["dtype"] and "returned" not in got:
                return f"{dtype}: the loss should be FP32; it is {got['dtype']}."
            if got.get("types", [dtype] * 2) != [dtype] * 2 and got["types"]:
                return f"{dtype}: gradients should have the type of the inputs; they are {' and '.join(got['types'])}."
            if got["short"]:
                return f"{dtype}: aten.{got['short']} computes in 16 bits; cast a chunk's logits to FP32 before it."
            wrong = what_is_wrong(got, right, 0.01)
            if wrong:
                return f"{dtype}, 256 chunks: {wrong} Rounding explains less than 0.01; sum over chunks in FP32."
        off = relative_distance(seen[_MANY_ROWS] or [0.0], expected[_MANY_ROWS])
        if not off <= 0.01:
            return (
                f"{_MANY_ROWS}: the gradient of weight is off by {off:.2g} of its norm. A probability of 1/2048 "
                "divided by 16,384 rows underflows in FP16: divide by the count last, in FP32."
            )
        return None


CHUNKED = (MatchesTheWholeLogits, IgnoredRowsCountForNothing, SumsInFullPrecision, LogitsNeverWhole)
