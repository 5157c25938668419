"""Check of grouped query heads over ranks: the K/V heads of each rank, and the gradients of shared ones."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from .inputs import drawn
from .said import by_rank, in_words, noted, wrong_tensor

HeadsOf = Callable[[int, int, int, int], list[int]]
SumShared = Callable[[Tensor, int, int], Tensor]
LAYOUTS = (
    (4, 8, 2),
    (2, 6, 3),
    (4, 12, 6),
    (3, 12, 4),
    (2, 8, 8),
    (4, 4, 1),
    (1, 6, 2),
    (8, 24, 3),
)  # ranks, heads, K/V
# on 4 ranks: query heads, K/V heads, further dimensions of a head's gradient, and its dtype
SHARED = {
    "8 query heads, 2 K/V heads": (8, 2, (3, 2), torch.float32),
    "12 and 6": (12, 6, (), torch.float64),
    "4 and 1": (4, 1, (5,), torch.bfloat16),
    "8 and 4": (8, 4, (2, 1, 3), torch.float32),
}


class HoldsWhatItsQueriesUse(Check):
    """A rank has consecutive query heads and the K/V head of each, even if the numbers do not divide evenly."""

    hint = (
        "Which query heads does the rank have? Then, for each: how many query heads share one K/V head?\n"
        "Does the K/V head of a query head depend on the rank?"
    )

    @staticmethod
    def probe(seed: int, kv_heads_of: HeadsOf, _: Any) -> Evidence:
        return {
            f"{ranks} {heads} {kv}": [
                [int(head) for head in kv_heads_of(rank, ranks, heads, kv)] for rank in range(ranks)
            ]
            for ranks, heads, kv in LAYOUTS
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks, heads, kv in LAYOUTS:
            case = f"{ranks} {heads} {kv}"
            texts = [
                None if got == want else f"returns {got}; it should return {want}"
                for got, want in zip(seen[case], expected[case], strict=True)
            ]
            if said := by_rank(f"{heads} query heads, {kv} K/V heads", texts):
                return f"{said}\nWhich query heads does a rank have, and how many of them share one K/V head?"
        return None


def _held(rank: int, ranks: int, heads: int, kv_heads: int) -> list[int]:
    """Return the different K/V heads of a rank."""
    group, each = heads // kv_heads, heads // ranks
    return sorted({head // group for head in range(rank * each, (rank + 1) * each)})


def _summed(seed: int, sum_shared: SumShared) -> Evidence:
    """One rank: gradients of its K/V heads before and after, and those of one process; what was sent."""
    rank, n, seen = dist.get_rank(), dist.get_world_size(), {}
    for case, (heads, kv_heads, rest, dtype) in SHARED.items():
        parts = [part.round() for part in drawn(seed, kv_heads, *rest, dtype=dtype)]  # exact in 16 bits as well
        held = [_held(r, n, heads, kv_heads) for r in range(n)]
        whole, copies = torch.zeros_like(parts[0]), torch.zeros(kv_heads)
        for part, own in zip(parts, held, strict=True):
            whole[own] += part[own]
            copies[own] += 1
        mine = parts[rank][held[rank]].clone()
        with Collectives() as calls:
            got = sum_shared(mine, heads, kv_heads)
        right = whole[held[rank]]
        seen[case] = {
            "got": noted(got),
            "right": noted(right),
            "own": noted(parts[rank][held[rank]]),
            "mean": noted(right / copies[held[rank]].view(-1, *[1] * len(rest))),
            "dtypes": [str(t.dtype).removeprefix("torch.") for t in (got, mine)],
            "changed": not torch.equal(mine, parts[rank][held[rank]]),
            "calls": [list(call) for call in calls.calls],
            "most": whole.nbytes if int(copies.max()) > 1 else 0,
        }
    return seen


def observe(seed: int, _: Any, sum_shared: SumShared) -> Evidence:
    """Return what each of four ranks measured."""
    return {"ranks": on_ranks(_summed, 4, seed, sum_shared)}


class SumsTheCopies(Check):
    """The gradient of a shared K/V head combines those of all ranks that hold it."""

    hint = (
        "The copies are one parameter, used by several ranks' query heads. What does autograd do with a parameter that "
        "is used several times?\n"
        "Ranks hold different heads. What can they all-reduce that has the same shape on every rank?"
    )

    after = ("holds_what_its_queries_use",)

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected["ranks"][0]:
            texts = []
            for got, want in zip(seen["ranks"], expected["ranks"], strict=True):
                mistakes = {
                    "is that of this rank's copy alone": want[case]["own"],
                    "is the mean of the copies'": want[case]["mean"],
                }
                texts.append(wrong_tensor(got[case]["got"], want[case]["right"], mistakes, tolerance=1e-5))
            if said := by_rank(f"{case}, the gradient", texts):
                return (
                    f"{said}\nWhich ranks hold this head, and what does each of their query heads add to its gradient?"
                )
            texts = []
            for got in seen["ranks"]:
                returned, came = got[case]["dtypes"]
                texts.append(None if returned == came else f"is {returned}; it should be {came}")
            if said := by_rank(f"{case}, the gradient's dtype", texts):
                return f"{said}\nIn which dtype is the tensor that you reduce?"
            texts = ["was changed in place" if got[case]["changed"] else None for got in seen["ranks"]]
            if said := by_rank(f"{case}, the gradient that came in", texts):
                return f"{said}\nWhich tensor does `dist.all_reduce` write into?"
        return None


class SendsSharedHeadsOnly(Check):
    """One all-reduce of at most K heads if some head is stored on two ranks; otherwise nothing."""

    hint = (
        "Each rank can compute which heads the others hold. In total, do the ranks hold more heads than K?\n"
        "Return the gradient itself if no head is stored on two ranks."
    )

    after = ("holds_what_its_queries_use",)

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["ranks"][0].items():
            most = want["most"]
            allowed = f"it should send one all_reduce of at most {most:,} B" if most else "it should send nothing"
            texts = []
            for got in seen["ranks"]:
                calls = got[case]["calls"]
                fine = len(calls) == 1 and calls[0][0] == "all_reduce" and calls[0][1] <= most if most else not calls
                texts.append(None if fine else f"sends {in_words(calls)}; {allowed}")
            if said := by_rank(case, texts):
                return f"{said}\nWhich heads are on more than one rank, and which tensor has room for all of them?"
        return None


HEADS = (HoldsWhatItsQueriesUse, SumsTheCopies, SendsSharedHeadsOnly)
