"""Check of the all-to-all between heads and tokens: what arrives, what is sent, any layout in memory."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from ..tensor_parallel.inputs import drawn
from ..tensor_parallel.said import by_rank, in_words, noted, wrong_tensor

Exchange = Callable[[Tensor, int, int], Tensor]
RANKS = 3
CASES: dict[str, tuple[tuple[int, ...], int, int]] = {  # shape on each rank, `split`, `join`
    "heads (1) split, tokens (2) joined": ((2, 6, 4, 5), 1, 2),
    "tokens (2) split, heads (1) joined": ((2, 2, 12, 5), 2, 1),
    "one head for each rank, one sequence": ((1, 3, 5, 4), 1, 2),
}


def _strided(tensor: Tensor) -> Tensor:
    """Return the same numbers in another order in memory, as `transpose` leaves q, k and v in a model."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _exchanged(seed: int, exchange: Exchange, strided: bool) -> list[Evidence]:
    """One rank: for each case what arrives, what is sent, and whether the input is still as it was."""
    rank, seen = dist.get_rank(), []
    for number, (shape, split, join) in enumerate(CASES.values()):
        whole = drawn(seed + number, *shape)  # of all ranks
        kept = whole[rank].clone()
        mine = _strided(kept) if strided else kept.clone()
        with Collectives() as calls:
            got = exchange(mine, split, join)
        right = torch.cat([x.chunk(RANKS, dim=split)[rank] for x in whole], dim=join)
        seen.append(
            {
                "got": noted(got),
                "right": noted(right),
                "calls": [list(call) for call in calls.calls],
                "bytes": mine.nbytes,
                "changed": not torch.equal(mine, kept),
            }
        )
    return seen


def observe(seed: int, exchange: Exchange) -> Evidence:
    """Return what each rank saw with contiguous tensors."""
    return {"ranks": on_ranks(_exchanged, RANKS, seed, exchange, False)}


def _wrong(seen: Evidence) -> str | None:
    for i, case in enumerate(CASES):
        ranks = [rank[i] for rank in seen["ranks"]]
        if said := by_rank(case, [wrong_tensor(got["got"], got["right"], {}) for got in ranks]):
            return said
        if said := by_rank(f"{case}: x", ["was changed in place" if got["changed"] else None for got in ranks]):
            return said
    return None


class ExchangesSlices(Check):
    """Rank j gets slice j of every rank, joined in the order of the ranks."""

    hint = (
        "Rank j needs slice j of dimension `split`. `all_to_all_single` cuts dimension 0, so first make a tensor whose "
        "dimension 0 has an entry per rank.\n"
        "`torch.stack(x.chunk(n, dim=split))` is such a tensor. What arrives has the same shape, with an entry per "
        "sending rank in dimension 0.\n"
        "Join what has arrived with `torch.cat(arrived.unbind(), dim=join)`."
    )
    compared = False
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen)


class SendsEachSliceOnce(Check):
    """One all-to-all of the size of x, so each slice goes only to the rank that needs it."""

    hint = (
        "If all ranks gather everything, each of them sends its whole tensor to every other rank.\n"
        "One call of `dist.all_to_all_single` is enough."
    )
    compared = False
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for i, case in enumerate(CASES):
            texts = []
            for got in (rank[i] for rank in seen["ranks"]):
                right = [["all_to_all", got["bytes"]]]
                needed = f"calls {in_words(got['calls'])}; it needs {in_words(right)}"
                texts.append(None if got["calls"] == right else needed)
            if said := by_rank(case, texts):
                return said
        return None


class TakesAnyLayout(Check):
    """x need not be contiguous, as after `transpose`."""

    hint = "`view` and collectives need contiguous memory. `torch.stack`, `torch.cat` and `.contiguous()` provide it."
    compared = False

    @staticmethod
    def probe(seed: int, exchange: Exchange) -> Evidence:
        return {"ranks": on_ranks(_exchanged, RANKS, seed + 3, exchange, True)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen)


EXCHANGE: tuple[Any, ...] = (ExchangesSlices, SendsEachSliceOnce, TakesAnyLayout)
