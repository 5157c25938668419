"""Check of part 1: which tokens a rank holds."""

import random
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence
from ..probing.plain import plain

CASES = {  # ranks, whether there is one row, whether a chunk is one token
    "2 ranks": (2, False, False),
    "4 ranks": (4, False, False),
    "3 ranks": (3, False, False),
    "1 rank": (1, False, False),
    "3 ranks, a batch of one row": (3, True, False),
    "2 ranks, chunks of one token": (2, False, True),
    "2 ranks, one row and chunks of one token": (2, True, True),
}
UNEVEN = ((2, 6), (4, 20), (3, 8), (2, 5), (1, 3))  # ranks, tokens: what is left over is 2, 4, 2, 1, 1


def _numbers(tensor: Any) -> Any:
    """Return a tensor of whole numbers as nested lists, its dtype where it is another, and else the type's name."""
    if not isinstance(tensor, Tensor):
        return type(tensor).__name__
    return plain(tensor).tolist() if tensor.dtype == torch.int64 else str(tensor.dtype).removeprefix("torch.")


def _refusal(shard: Any, ranks: int, length: int, rank: int) -> str:
    """Return the name of the error with which a rank refuses to cut `length` tokens; "" if it goes on."""
    try:
        shard(torch.zeros(1, length + 1, dtype=torch.int64), rank, ranks)
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__
    return ""


class EachRankHoldsTwoChunks(Check):
    """Of 2N chunks, rank r holds chunks r and 2N - 1 - r with their positions, and each token's target is the next."""

    points = 1
    hint = (
        "Make the positions first: two stretches of T / (2N) numbers each. Which one is the last rank's second?\n"
        "The target of position p is tokens[:, p + 1], also where p is the last of its chunk."
    )

    @staticmethod
    def probe(seed: int, shard: Any) -> Evidence:
        rng = random.Random(seed)
        seen: Evidence = {}
        for case, (ranks, few_rows, short) in CASES.items():
            batch, chunk = 1 if few_rows else rng.randint(2, 3), 1 if short else rng.randint(2, 5)
            generator = torch.Generator().manual_seed(seed + len(seen))
            tokens = torch.randint(1000, (batch, 2 * ranks * chunk + 1), generator=generator)
            parts = [tuple(shard(tokens.clone(), rank, ranks)) for rank in range(ranks)]
            seen[case] = [[_numbers(tensor) for tensor in part] for part in parts]
        return {
            "parts": seen,
            "refused": [[_refusal(shard, *uneven, rank) for rank in range(uneven[0])] for uneven in UNEVEN],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["parts"].items():
            got = seen["parts"][case]
            for rank, (mine, right) in enumerate(zip(got, want, strict=True)):
                where = f"{case}, rank {rank}"
                if len(mine) != 3:
                    return f"{where}: {len(mine)} values were returned; it should be (inputs, targets, positions)."
                if mine[2] != right[2]:
                    return f"{where}: {_wrong_positions(mine[2], right[2], [part[2] for part in want])}"
                for name, tensor, goal in zip(("inputs", "targets"), mine, right, strict=False):
                    if tensor != goal:
                        return f"{where}: {_wrong_tokens(name, tensor, goal)}"
        for (ranks, length), names in zip(UNEVEN, seen["refused"], strict=True):
            going_on = [rank for rank, name in enumerate(names) if name != "ValueError"]
            if going_on:
                return (
                    f"{length} tokens for {ranks} rank(s) cannot be divided into equal chunks, but rank {going_on[0]} "
                    "raised no ValueError."
                )
        return None


def _wrong_positions(got: Any, want: list[int], all_ranks: list[list[int]]) -> str:
    if not isinstance(got, list):
        return f"the positions are {got}; they should be a tensor of int64."
    if got in all_ranks:
        return f"these are the positions of rank {all_ranks.index(got)}."
    if len(got) != len(want):
        return f"it has {len(got)} positions; it should have {len(want)}."
    if isinstance(got[0], int) and sorted(got) == sorted(want):
        return "the positions are right but in another order; the earlier chunk comes first."
    return f"the positions are {_short(got)}; chunks r and 2N - 1 - r are {_short(want)}."


def _wrong_tokens(name: str, got: Any, want: list[list[int]]) -> str:
    if not isinstance(got, list):
        return f"the {name} are {got}; they should be a tensor of int64."
    a, b = torch.tensor(got), torch.tensor(want)
    if a.shape != b.shape:
        return f"the {name} have shape {tuple(a.shape)}; it should be {tuple(b.shape)}."
    wrong = (a != b).any(0).nonzero().flatten().tolist()
    half = b.shape[1] // 2
    if name == "targets" and set(wrong) <= {half - 1, b.shape[1] - 1}:
        return "the target of the last token of a chunk is not the token that follows it in the text."
    return f"the {name} are wrong at {len(wrong)} of {b.shape[1]} places, the first of them {wrong[0]}."


def _short(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")


SHARD = (EachRankHoldsTwoChunks,)
