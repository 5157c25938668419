"""Check of the cross-entropy of a large vocabulary whose logits never exist as a whole."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.device import pick_device
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from .watcher import LogitsWatcher

IGNORED = -100
Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def _inputs(
    seed: int, rows: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    device = pick_device()
    hidden = torch.randn(rows, width, generator=generator).to(device, dtype).requires_grad_()
    weight = (torch.randn(vocabulary, width, generator=generator) / math.sqrt(width)).to(device, dtype).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (rows,), generator=generator).to(device)


def _numbers(tensor: Tensor | None) -> list[float] | None:
    return None if tensor is None else tensor.detach().double().cpu().flatten().tolist()


def _evidence(loss: Any, hidden: Tensor, weight: Tensor) -> Evidence:
    if not isinstance(loss, Tensor):
        return {"returned": type(loss).__name__}
    return {
        "loss": loss.item() if loss.numel() == 1 else math.nan,
        "shape": list(loss.shape),
        "dtype": str(loss.dtype),
        "hidden": _numbers(hidden.grad),
        "weight": _numbers(weight.grad),
        "types": [str(t.grad.dtype) for t in (hidden, weight) if t.grad is not None],
    }


def _wrong(got: Evidence, want: Evidence, tolerance: float) -> str | None:
    """Say what differs in the loss or in the gradients."""
    if "returned" in got:
        return f"return the loss, a tensor with one number; you return {got['returned']}."
    if got["shape"]:
        return f"the loss should be one number, of shape (); yours has the shape {tuple(got['shape'])}."
    if not abs(got["loss"] - want["loss"]) <= tolerance * (1 + abs(want["loss"])):
        times = f", {got['loss'] / want['loss']:.3g} times it" if want["loss"] else ""
        return f"the loss should be {want['loss']:.6g} and is {got['loss']:.6g}{times}."
    for name in ("hidden", "weight"):
        mine, right = got[name], want[name]
        if (mine is None) != (right is None):
            return (
                f"{name} gets no gradient and should." if mine is None else f"{name} should get no gradient; it does."
            )
        if right is None:
            continue
        if not any(right):
            if any(not abs(number) <= 1e-9 for number in mine):
                return f"the gradient of {name} should be zero everywhere and is not."
        elif not relative_distance(mine, right) <= tolerance:
            off = f"{relative_distance(mine, right):.2g} of its length"
            return f"the gradient of {name} is not that of the whole logits: off by {off}.{_scaled(mine, right)}"
    return None


def _scaled(mine: list[float], right: list[float]) -> str:
    """Say by which factor `mine` is too large, where that is all."""
    square = sum(b * b for b in right)
    factor = sum(a * b for a, b in zip(mine, right, strict=True)) / square if len(mine) == len(right) else 0.0
    if not math.isfinite(factor) or not any(mine):
        return " It is zero or not finite."
    same = relative_distance(mine, [factor * b for b in right]) <= 1e-3
    return f" It is {factor:.4g} times as large as it should be: which factor is missing?" if same else ""


class MatchesTheWholeLogits(Check):
    """Loss and gradients are those of F.cross_entropy on all logits, whatever the chunk and whatever comes after."""

    hint = (
        "Which factor does backward() hand you, and who has divided by the rows that count?\n"
        "The gradient of a row's logits is (softmax - one at its label) / rows that count.\n"
        "Sum losses and gradients over chunks, divide once, and multiply by the gradient that backward() hands you."
    )

    @staticmethod
    def probe(seed: int, chunked_cross_entropy: Loss) -> Evidence:
        seen: Evidence = {}
        for case, rows, chunk in (("48 rows by 16", 48, 16), ("50 rows by 16", 50, 16), ("9 rows by 64", 9, 64)):
            hidden, weight, labels = _inputs(seed, rows, 6, 11)
            loss = chunked_cross_entropy(hidden, weight, labels, chunk)
            if isinstance(loss, Tensor) and loss.requires_grad:
                loss.backward()
            seen[case] = _evidence(loss, hidden, weight)
        hidden, weight, labels = _inputs(seed + 1, 40, 6, 11)
        for case in ("in the middle of a graph", "two losses, then one backward pass", "frozen weight"):
            hidden.grad = weight.grad = None
            weight.requires_grad_(case != "frozen weight")
            loss = 3.5 * chunked_cross_entropy(2 * hidden, weight, labels, 16)
            if case.startswith("two"):
                loss = loss + chunked_cross_entropy(hidden, weight, labels.flip(0), 7)
            if isinstance(loss, Tensor) and loss.requires_grad:
                loss.backward()
            seen[case] = _evidence(loss, hidden, weight)
        hidden.grad = weight.grad = None
        weight.requires_grad_()
        with torch.no_grad():
            loss = chunked_cross_entropy(hidden, weight, labels, 16)
        seen["under no_grad"] = _evidence(loss, hidden, weight)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            wrong = _wrong(seen[case], want, 1e-4)
            if wrong:
                return f"{case}: {wrong}"
        return None


class IgnoredRowsCountForNothing(Check):
    """Rows labelled -100 add nothing to the loss, to the count or to a gradient; with no other row, the loss is 0."""

    hint = (
        "Which rows count, in the chunk and in all chunks together?\n"
        "Divide by the number of labels that are not -100, of all chunks together, and by 1 where there is none. "
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
            hidden, weight, labels = _inputs(seed + 2, 50, 6, 11)
            labels[ignored] = IGNORED
            given = labels.clone()
            loss = chunked_cross_entropy(hidden, weight, labels, 16)
            if isinstance(loss, Tensor) and loss.requires_grad:
                loss.backward()
            seen[case] = _evidence(loss, hidden, weight) | {"untouched": torch.equal(labels, given)}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            if not seen[case].get("untouched", True):
                return f"{case}: the labels that you were given have changed; work on a copy."
            if case.startswith("all") and seen[case].get("hidden") is None and "returned" not in seen[case]:
                return f"{case}: backward() should give gradients of zeros; there are none."
            wrong = _wrong(seen[case], want, 1e-4)
            if wrong:
                return f"{case}: {wrong}"
        return None


def _whole(hidden: list[float], weight: list[float], labels: list[int], upstream: float, dtype: str) -> Evidence:
    """Return the evidence of all logits at once, in FP32, for inputs (N x 16) and (64 x 16) of this `dtype`."""
    kind = getattr(torch, dtype.removeprefix("torch."))
    x, w = (torch.tensor(numbers).view(-1, 16).to(kind).requires_grad_() for numbers in (hidden, weight))
    loss = F.cross_entropy(x.float() @ w.float().t(), torch.tensor(labels))
    (upstream * loss).backward()
    return _evidence(loss, x, w)


class SumsInFullPrecision(Check):
    """In 16 bits, softmax, loss and all sums over chunks are FP32; gradients come back in the type of the inputs."""

    hint = (
        "Where do many small numbers meet a large one? That sum must be FP32.\n"
        "Cast each chunk's logits to FP32 before the softmax; add up loss and gradients in FP32 tensors, undivided; "
        "multiply by upstream / count, and cast to the inputs' type, once and last."
    )

    @staticmethod
    def probe(seed: int, chunked_cross_entropy: Loss) -> Evidence:
        seen: Evidence = {}
        for dtype, upstream in ((torch.bfloat16, 1.0), (torch.float16, 2.0**12)):
            hidden, weight, labels = _inputs(seed + 3, 768, 16, 64, dtype)
            with torch.no_grad():
                hidden += 1  # so that the parts of each sum are alike, and a short sum stops growing
                labels[:] = labels % 4
            with LogitsWatcher(16, 64) as watcher:
                loss = chunked_cross_entropy(hidden, weight, labels, 3)
                if isinstance(loss, Tensor) and loss.requires_grad:
                    (upstream * loss).backward()
            seen[str(dtype)] = _evidence(loss, hidden, weight) | {
                "short": watcher.short,
                "inputs": [_numbers(hidden), _numbers(weight), labels.tolist()],
                "upstream": upstream,
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for dtype, want in expected.items():
            got, right = seen[dtype], _whole(*want["inputs"], want["upstream"], dtype)
            if got.get("dtype") != right["dtype"] and "returned" not in got:
                return f"{dtype}: the loss should be FP32; it is {got['dtype']}."
            if got.get("types", [dtype] * 2) != [dtype] * 2 and got["types"]:
                return f"{dtype}: gradients should have the type of the inputs; they are {' and '.join(got['types'])}."
            if got["short"]:
                return f"{dtype}: aten.{got['short']} computes in 16 bits; cast a chunk's logits to FP32 before it."
            wrong = _wrong(got, right, 0.01)
            if wrong:
                return f"{dtype}, 256 chunks: {wrong} Rounding alone explains less than 0.01."
        return None


class LogitsNeverWhole(Check):
    """At most `chunk` rows of logits exist at a time, forward and backward; no product is done for a gradient that nobody asked for."""

    hint = (
        "What of a chunk is still alive when the next one is made? And who asked for each product?\n"
        "Loop over slices of `chunk` rows. Nothing of a chunk may outlive its turn but its share of the sums: compute "
        "the gradients there and then, and let every name of the chunk's tensors go.\n"
        "`ctx.needs_input_grad` says which inputs require a gradient, `torch.is_grad_enabled()`, asked before `apply`, "
        "whether anybody will call backward()."
    )
    ROWS, WIDTH, VOCABULARY, CHUNK = 1000, 12, 1500, 32

    @staticmethod
    def probe(seed: int, chunked_cross_entropy: Loss) -> Evidence:
        seen: Evidence = {}
        sizes = LogitsNeverWhole
        for case in ("trained weight", "frozen weight", "under no_grad"):
            hidden, weight, labels = _inputs(seed + 4, sizes.ROWS, sizes.WIDTH, sizes.VOCABULARY)
            weight.requires_grad_(case != "frozen weight")
            watcher = LogitsWatcher(sizes.WIDTH, sizes.VOCABULARY)
            with MemoryMeter(device=hidden.device) as meter, watcher, torch.set_grad_enabled(case != "under no_grad"):
                loss = chunked_cross_entropy(hidden, weight, labels, sizes.CHUNK)
                if isinstance(loss, Tensor) and loss.requires_grad:
                    loss.backward()
            seen[case] = {
                "extra": meter.peak_bytes - sum(t.nbytes for t in (hidden, weight, labels)),
                "products": watcher.products,
                "most": watcher.most,
                "most_by": watcher.most_by,
                "weight_products": int(watcher.weight_products),
                "hidden_products": int(watcher.hidden_products),
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        sizes = LogitsNeverWhole
        whole = 4 * sizes.ROWS * sizes.VOCABULARY
        one = whole * sizes.CHUNK / sizes.ROWS
        sums = 4 * sizes.WIDTH * (sizes.ROWS + sizes.VOCABULARY)
        for case in expected:
            got = seen[case]
            if not got["most"] <= sizes.CHUNK:
                return (
                    f"{case}, chunk={sizes.CHUNK}: aten.{got['most_by']} makes {got['most']} rows x vocabulary at once."
                )
            if not got["products"] or max(got["products"]) < sizes.CHUNK:
                largest = max(got["products"], default=0)
                return f"{case}, chunk={sizes.CHUNK}: products of {largest} rows at most; take {sizes.CHUNK} at a time."
            if sum(got["products"]) < sizes.ROWS:
                return f"{case}: logits of {sum(got['products'])} rows were computed; there are {sizes.ROWS}."
            if not got["extra"] <= whole / 3:
                return (
                    f"{case}: {got['extra'] / 2**20:.1f} MiB at the peak besides the inputs; a chunk of logits has "
                    f"{one / 2**20:.1f}, all of them {whole / 2**20:.1f}. What of a chunk is kept?"
                )
            if not got["extra"] <= 3.25 * one + 2 * sums:
                return (
                    f"{case}: besides inputs and sums the peak holds {(got['extra'] - 2 * sums) / one:.1f} times a "
                    "chunk of logits, or more; three are enough. Which name still points to the last chunk's tensors?"
                )
            if case != "trained weight" and got["weight_products"]:
                return f"{case}: {got['weight_products']} products for a gradient of the weight, which nobody wants."
            if case == "under no_grad" and got["hidden_products"]:
                return f"{case}: {got['hidden_products']} products for a gradient of hidden, which nobody wants."
        return None


CHUNKED = (MatchesTheWholeLogits, IgnoredRowsCountForNothing, SumsInFullPrecision, LogitsNeverWhole)
