"""Checks of the experts' work: each expert on its own rows only, and every result back at its token."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...meter.flops import count_flops
from ..base import Check, Evidence
from ..tensor_parallel.said import noted, wrong_tensor
from .inputs import HIDDEN, WIDTH, drawn, leaf

EXPERTS = 4
COUNTS = {
    "uneven": [7, 2, 1, 5],
    "experts 0 and 2 without rows": [0, 6, 0, 3],
    "the last without rows": [3, 4, 2, 0],
    "all rows for one": [0, 9, 0, 0],
    "no rows at all": [0, 0, 0, 0],
}


def _worked(seed: int, counts: list[int], grouped: Callable[..., Tensor]) -> list[Evidence | None]:
    """Return the output and the gradients of rows, up and down."""
    given = drawn(seed, sum(counts), [0.0] * EXPERTS)
    rows, up, down = map(leaf, (given.x, given.up, given.down))
    y = grouped(rows * 1, torch.tensor(counts), up * 1, down * 1)
    if y.requires_grad and y.shape == given.goal.shape:
        (y * given.goal).sum().backward()
    return [noted(y), noted(rows.grad), noted(up.grad), noted(down.grad)]


def _by_hand(rows: Tensor, counts: Tensor, up: Tensor, down: Tensor) -> Tensor:
    of = torch.arange(EXPERTS).repeat_interleave(counts)  # (rows,), the expert of each
    hidden = F.gelu(torch.einsum("rc,rhc->rh", rows, up[of]))
    return torch.einsum("rh,rch->rc", hidden, down[of])


class EachExpertOnItsRows(Check):
    """Each row goes through its own expert; gradients are right, and zero for an expert without rows."""

    hint = (
        "`rows.split(counts.tolist())` cuts the rows into one tensor per expert; some may be empty.\n"
        "`F.gelu(piece @ up[e].T) @ down[e].T` also works for 0 rows, and keeps the expert in autograd's graph.\n"
        "`torch.cat` joins the results."
    )

    @staticmethod
    def probe(seed: int, _: Any, __: Any, grouped: Any, ___: Any) -> Evidence:
        seen = {}
        for case, counts in COUNTS.items():
            seen[case] = {"got": _worked(seed, counts, grouped), "right": _worked(seed, counts, _by_hand)}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for i, what in enumerate(("the output", *(f"the gradient of {name}" for name in ("rows", "up", "down")))):
                text = wrong_tensor(seen[case]["got"][i], want["right"][i], {})
                if text:
                    return f"{case}: {what} {text}."
        return None


class ComputesNoOtherRows(Check):
    """Each expert computes its own rows and no others, so every row costs its FLOPs once."""

    hint = "Where does an expert compute tokens that did not choose it, only to mask or drop them later?"

    @staticmethod
    def probe(seed: int, _: Any, __: Any, grouped: Any, ___: Any) -> Evidence:
        seen = {}
        for case, counts in COUNTS.items():
            given = drawn(seed, sum(counts), [0.0] * EXPERTS)
            work = [given.x, torch.tensor(counts), given.up, given.down]
            seen[case] = count_flops(lambda work=work: grouped(*work))
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, counts in COUNTS.items():
            right = 2 * 2 * sum(counts) * WIDTH * HIDDEN
            if not seen[case] <= right:
                times = f": too many by a factor of {seen[case] / right:.2g}" if right else ""
                return f"{case}: {seen[case]:,} FLOPs; two matmuls with {sum(counts)} rows take {right:,}{times}."
        return None


class PutsRowsBack(Check):
    """A token gets the sum of its k rows, each times its weight; gradients reach rows and weights."""

    hint = (
        "Row j belongs at position source[j] of the flat (n·k) choices.\n"
        "`torch.empty_like(rows).index_copy(0, source, rows)` puts all rows at their positions at once.\n"
        "Then `.view(n, k, C)`, multiply by the weights, and sum over k."
    )

    @staticmethod
    def probe(seed: int, _: Any, __: Any, ___: Any, unpermute: Any) -> Evidence:
        seen = {}
        for case, (tokens, k) in {"k = 2": (7, 2), "k = 1": (6, 1), "k = 3": (5, 3), "no tokens": (0, 2)}.items():
            given = drawn(seed, tokens, [0.0] * EXPERTS, k)
            generator = torch.Generator().manual_seed(seed + k)
            source = torch.randperm(tokens * k, generator=generator)
            flat = torch.randn(tokens * k, WIDTH, generator=generator, dtype=torch.float64)
            for name, function in (("got", unpermute), ("right", _back_by_hand)):
                rows, weights = leaf(flat), leaf(given.weights)
                y = function(rows * 1, source.clone(), weights * 1)
                if y.requires_grad and y.shape == given.goal.shape:
                    (y * given.goal).sum().backward()
                seen.setdefault(case, {})[name] = [noted(y), noted(rows.grad), noted(weights.grad)]
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for i, what in enumerate(("the output", "the gradient of rows", "the gradient of weights")):
                text = wrong_tensor(seen[case]["got"][i], want["right"][i], {})
                if text:
                    return f"{case}: {what} {text}."
        return None


def _back_by_hand(rows: Tensor, source: Tensor, weights: Tensor) -> Tensor:
    at = torch.zeros(len(source), len(source), dtype=rows.dtype)
    at[source, torch.arange(len(source))] = 1  # a permutation, written as a matrix
    return ((at @ rows).view(*weights.shape, WIDTH) * weights[..., None]).sum(dim=1)


LAYER = (EachExpertOnItsRows, ComputesNoOtherRows, PutsRowsBack)
