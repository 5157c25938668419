"""Practice check of activation checkpointing: fit a model under a budget with the least recomputation."""

import random
from collections.abc import Callable, Sequence

from .base import Check, Evidence, Part


def held(kept: Sequence[int], inputs: Sequence[int], chosen: Sequence[int]) -> int:
    """Return the bytes of activations when the blocks in `chosen` are checkpointed: the rule of the lab."""
    stay = sum(k for i, k in enumerate(kept) if i not in chosen)
    return stay + sum(inputs[i] for i in chosen) + max((kept[i] for i in chosen), default=0)


class FitsAtTheLeastCost(Check):
    """The chosen blocks fit the budget, and no other choice that fits recomputes less."""

    hint = (
        "Try every set of blocks (itertools.combinations); keep those that fit, and take the one of least cost. What "
        "stays: all of a block that is not checkpointed, the input of one that is, and the largest recomputed one."
    )

    @staticmethod
    def probe(seed: int, choose_blocks: Callable[..., Sequence[int] | None]) -> Evidence:
        rng = random.Random(seed)
        seen = {}
        for case, share in (("half of it", 0.5), ("two thirds", 0.67), ("all of it", 1.0), ("hardly anything", 0.02)):
            for n in (4, 8):
                kept = [rng.randint(20, 200) for _ in range(n)]
                inputs = [rng.randint(4, 15) for _ in range(n)]
                flops = [rng.randint(5, 60) for _ in range(n)]
                budget = int(share * sum(kept))
                chosen = choose_blocks(list(kept), list(inputs), list(flops), budget)
                seen[f"{case}, {n} blocks"] = {
                    "chosen": None if chosen is None else sorted(int(i) for i in chosen),
                    "puzzle": [kept, inputs, flops, budget],
                }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            kept, inputs, flops, budget = want["puzzle"]
            chosen, best = seen[case]["chosen"], want["chosen"]
            if best is None:
                if chosen is not None:
                    return f"{case}: no choice fits {budget} bytes; return None. You chose {chosen}."
                continue
            if chosen is None:
                return (
                    f"{case}: you found nothing that fits {budget} bytes; {best} does, with {held(kept, inputs, best)}."
                )
            if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(len(kept))):
                return f"{case}: {chosen} is not a choice among {len(kept)} blocks."
            if held(kept, inputs, chosen) > budget:
                return f"{case}: {chosen} holds {held(kept, inputs, chosen)} bytes; the budget is {budget}."
            cost, least = (sum(flops[i] for i in blocks) for blocks in (chosen, best))
            if cost > least:
                return f"{case}: {chosen} recomputes {cost}; {best} fits as well and recomputes {least}."
        return None


PARTS = (Part("activation_checkpointing.fit", ("choose_blocks",), (FitsAtTheLeastCost,)),)
