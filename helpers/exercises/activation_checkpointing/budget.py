"""Check of a choice of blocks: fit a model under a budget with the least recomputation."""

import random
from collections.abc import Callable, Sequence

from ..base import Check, Evidence

Choose = Callable[..., Sequence[int] | None]


def held(kept: Sequence[int], inputs: Sequence[int], chosen: Sequence[int]) -> int:
    """Return the bytes of activations when the blocks in `chosen` are checkpointed: the rule of the lab."""
    stay = sum(k for i, k in enumerate(kept) if i not in chosen)
    return stay + sum(inputs[i] for i in chosen) + max((kept[i] for i in chosen), default=0)


def _chosen(seed: int, shares: dict[str, float], choose_blocks: Choose) -> Evidence:
    """Let `choose_blocks` fit one to ten blocks into shares of what they keep."""
    rng = random.Random(seed)
    seen: Evidence = {}
    for case, share in shares.items():
        for n in (4, 8, 10, 1):
            kept = [rng.randint(20, 200) for _ in range(n)]
            inputs = [rng.randint(4, 15) for _ in range(n)]
            flops = [rng.randint(5, 60) for _ in range(n)]
            budget = int(share * sum(kept))
            if share < 0:  # exactly what all blocks hold when all are checkpointed
                budget = held(kept, inputs, range(n))
            answer = choose_blocks(list(kept), list(inputs), list(flops), budget)
            seen[f"{case}, {n} blocks"] = {
                "chosen": None if answer is None else sorted(int(i) for i in answer),
                "puzzle": [kept, inputs, flops, budget],
            }
    return seen


def _wrong(seen: Evidence, expected: Evidence) -> str | None:
    """Say what is wrong with a choice, whatever was asked."""
    for case, want in expected.items():
        kept, inputs, flops, budget = want["puzzle"]
        chosen, best = seen[case]["chosen"], want["chosen"]
        if best is None:
            if chosen is not None:
                return f"{case}: no choice fits {budget} bytes; return None. You chose {chosen}."
            continue
        if chosen is None:
            return f"{case}: you found nothing that fits {budget} bytes; {best} does, with {held(kept, inputs, best)}."
        if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(len(kept))):
            return f"{case}: {chosen} is not a choice among {len(kept)} blocks."
        if held(kept, inputs, chosen) > budget:
            return f"{case}: {chosen} holds {held(kept, inputs, chosen)} bytes; the budget is {budget}."
        cost, least = (sum(flops[i] for i in blocks) for blocks in (chosen, best))
        if cost > least:
            return f"{case}: {chosen} recomputes {cost}; {best} fits as well and recomputes {least}."
    return None


class FitsAtTheLeastCost(Check):
    """The chosen blocks fit the budget, and no other choice that fits recomputes less."""

    hint = (
        "Eight blocks have 256 choices: try every set of blocks (itertools.combinations).\n"
        "What is held: blocks that are not checkpointed, inputs of those that are, and the largest recomputed one.\n"
        "Keep the choices that fit, and take the one with the smallest sum of flops."
    )

    @staticmethod
    def probe(seed: int, choose_blocks: Choose) -> Evidence:
        return _chosen(seed, {"half of it": 0.5, "two thirds": 0.67}, choose_blocks)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class FillsTheBudget(Check):
    """A choice that holds exactly `budget` bytes fits."""

    hint = "At most `budget` bytes: exactly as many are allowed."

    @staticmethod
    def probe(seed: int, choose_blocks: Choose) -> Evidence:
        return _chosen(seed + 1, {"room for all blocks checkpointed and not a byte more": -1.0}, choose_blocks)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class TakesNoneIfAllFits(Check):
    """When everything fits, no block is checkpointed."""

    hint = "The empty choice is one of the choices: itertools.combinations(blocks, 0) has it."

    @staticmethod
    def probe(seed: int, choose_blocks: Choose) -> Evidence:
        return _chosen(seed + 2, {"all of it": 1.0, "twice as much": 2.0}, choose_blocks)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class SaysWhenNothingFits(Check):
    """When no choice fits, the answer is None."""

    hint = "An empty list means that no block needs a checkpoint. None means that no choice fits."

    @staticmethod
    def probe(seed: int, choose_blocks: Choose) -> Evidence:
        return _chosen(seed + 3, {"hardly anything": 0.02}, choose_blocks)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


BUDGET = (FitsAtTheLeastCost, FillsTheBudget, TakesNoneIfAllFits, SaysWhenNothingFits)
