"""Check of merging partial attention: two means and two log-sum-exps become one of each."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence
from ..tensor_parallel.said import noted, wrong_tensor

Result = tuple[Tensor, Tensor]
Merge = Callable[[Result, Result], Result]
SHAPES = {
    "rows of one head": (5,),
    "batch and heads": (2, 3, 4),
    "one row of one head": (1, 1, 1),
}  # before the columns
COLUMNS, HEAD = (7, 2, 4), 3  # of three parts; channels of a value
MISTAKES = {
    "out": "is the plain mean of the parts, which do not have the same weight",
    "lse": "is the sum of both log-sum-exps: add the exponentials, then take the logarithm",
}


def _part(scores: Tensor, values: Tensor) -> Result:
    """Return mean and log-sum-exp: scores (..., R, C), values (..., C, d)."""
    return scores.softmax(-1) @ values, scores.logsumexp(-1)


def _three(seed: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[list[Result], Result]:
    """Return attention of the same rows on three parts of the columns, and on all of them."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) * 2  # noqa: E731
    scores, values = draw(*shape, sum(COLUMNS)), draw(*shape[:-1], sum(COLUMNS), HEAD)
    parts = zip(scores.split(COLUMNS, -1), values.split(COLUMNS, -2), strict=True)
    return [_part(*part) for part in parts], _part(scores, values)


def _wrong(seen: Evidence, expected: Evidence, tolerance: float = 1e-6) -> str | None:
    for case, want in expected.items():
        for what in ("lse", "out"):
            mistakes = {MISTAKES[what]: want[f"wrong {what}"]} if f"wrong {what}" in want else {}
            if said := wrong_tensor(seen[case][what], want[f"right {what}"], mistakes, tolerance):
                return f"{case}: {what} {said}"
    return None


class MergesAsOneSoftmax(Check):
    """The merged result is that of one softmax over all columns, whichever parts are merged first."""

    hint = (
        "What is the weight of each part? Its sum of exponentials, and `lse` is the logarithm of that.\n"
        "The new sum of exponentials is the sum of both; each `out` is weighted by its share of it.\n"
        "`torch.logaddexp(a, b)` is log(exp(a) + exp(b)); a part's share is exp(its lse - the new lse)."
    )

    @staticmethod
    def probe(seed: int, merge: Merge) -> Evidence:
        seen = {}
        for case, shape in SHAPES.items():
            (a, b, c), whole = _three(seed, shape)
            ways = {"merge(a, merge(b, c))": merge(a, merge(b, c)), "merge(merge(c, b), a)": merge(merge(c, b), a)}
            for way, (out, lse) in ways.items():
                mean = (a[0] + (b[0] + c[0]) / 2) / 2
                seen[f"{case}, {way}"] = {
                    "out": noted(out),
                    "lse": noted(lse),
                    "right out": noted(whole[0]),
                    "right lse": noted(whole[1]),
                    "wrong out": noted(mean),
                    "wrong lse": noted(a[1] + b[1] + c[1]),
                }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class TakesAnyScore(Check):
    """Log-sum-exps in the thousands, positive or negative, cause no infinity and no NaN."""

    hint = "exp(100) overflows in FP32. Subtract before you take the exponential: only differences matter."

    @staticmethod
    def probe(seed: int, merge: Merge) -> Evidence:
        seen = {}
        (a, b, _), _ = _three(seed, SHAPES["batch and heads"])
        signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(a[1].numel() // 2).view_as(a[1])
        shifts = {f"near {shift:,.0f}": signs * 0 + shift for shift in (10_000.0, -10_000.0, 200.0)}
        for case, shift in (shifts | {"near 10,000 and -10,000, row by row": 10_000 * signs}).items():
            low, high = shift, shift + torch.linspace(-3, 3, a[1].numel(), dtype=torch.float64).view_as(a[1])
            moved = [(a[0].float(), (a[1] * 0 + low).float()), (b[0].float(), (b[1] * 0 + high).float())]
            exact = [(out.double(), lse.double()) for out, lse in moved]
            share = torch.sigmoid(exact[0][1] - exact[1][1])[..., None]
            out, lse = merge(*moved)
            seen[f"log-sum-exps {case}"] = {
                "out": noted(out),
                "lse": noted(lse),
                "right out": noted(share * exact[0][0] + (1 - share) * exact[1][0]),
                "right lse": noted(torch.logaddexp(exact[0][1], exact[1][1])),
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected, 1e-3)  # of 10,000 in FP32, differences are known to a thousandth


class KnowsWhatIsEmpty(Check):
    """If one result attended to no column (-inf), the other is returned; if neither did, out is 0 and lse is -inf."""

    hint = (
        "-inf minus -inf is NaN. Where does your code subtract one from the other?\n"
        "`torch.where(lse.isinf(), 0.0, lse)` is a number that can be subtracted: exp(-inf - 0) is 0."
    )

    @staticmethod
    def probe(seed: int, merge: Merge) -> Evidence:
        (a, _, _), _ = _three(seed, SHAPES["batch and heads"])
        nothing = torch.zeros_like(a[0]), torch.full_like(a[1], -torch.inf)
        half = a[1].clone()
        half[..., ::2] = -torch.inf  # every second row has seen nothing
        some = torch.where(half.isinf()[..., None], torch.zeros_like(a[0]), a[0]), half
        cases = {
            "the first attended to no column": (nothing, a, a),
            "the second attended to no column": (a, nothing, a),
            "neither attended to any column": (nothing, nothing, nothing),
            "some rows of the first attended to no column": (some, nothing, some),
        }
        seen = {}
        for case, (one, other, right) in cases.items():
            out, lse = merge(one, other)
            empty = right[1].isinf()
            seen[case] = {
                "out": noted(out),
                "lse": noted(lse.masked_fill(lse == -torch.inf, 0.0)),
                "empty": int((lse == -torch.inf).sum()),
                "right out": noted(right[0]),
                "right lse": noted(right[1].masked_fill(empty, 0.0)),
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            said = _wrong({case: seen[case]}, {case: want})
            if seen[case]["empty"] != want["empty"] and "NaN" not in (said or ""):
                empty, right = seen[case]["empty"], want["empty"]
                return f"{case}: lse is -inf in {empty} rows, not in the {right} that attended to no column."
            if said:
                return said
        return None


class KeepsParts(Check):
    """No input is changed, and the results have the inputs' dtype."""

    hint = "`+=` and `*=` write into the tensor on the left. Create new tensors instead."

    @staticmethod
    def probe(seed: int, merge: Merge) -> Evidence:
        seen: dict[str, Any] = {}
        for dtype in (torch.float32, torch.float64):
            (a, b, _), _ = _three(seed, SHAPES["rows of one head"], dtype)
            names = (f"{what} of the {which} result" for which in ("first", "second") for what in ("out", "lse"))
            given = dict(zip(names, (*a, *b), strict=True))
            before = {name: t.clone() for name, t in given.items()}
            results = merge(a, b)
            seen[str(dtype).removeprefix("torch.")] = {
                "changed": {name: not torch.equal(t, before[name]) for name, t in given.items()},
                "dtypes": [str(t.dtype).removeprefix("torch.") for t in results],
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for dtype in expected:
            for name in expected[dtype]["changed"]:
                if seen[dtype]["changed"][name]:
                    return f"{dtype}: {name} was changed in place."
            if seen[dtype]["dtypes"] != [dtype, dtype]:
                return f"Given {dtype}, it returns {' and '.join(seen[dtype]['dtypes'])}."
        return None


MERGE = (MergesAsOneSoftmax, TakesAnyScore, KnowsWhatIsEmpty, KeepsParts)
