"""Wrong and right answers for the practice task of activation checkpointing."""

from . import Mutant

FIT, LEAST = "activation_checkpointing.fit", "fits_at_the_least_cost"


def one(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, FIT, LEAST, ((old, new),))


MUTANTS = [
    one("recomputed block forgotten", " + max((kept[i] for i in chosen), default=0)", ""),
    one("inputs forgotten", "sum(inputs[i] for i in chosen)", "0"),
    one("sum of recomputed blocks", "max((kept[i] for i in chosen), default=0)", "sum(kept[i] for i in chosen)"),
    one("fewest blocks", "key=lambda chosen: sum(flops[i] for i in chosen)", "key=len"),
    one("least memory", "key=lambda chosen: sum(flops[i] for i in chosen)", "key=held"),
    one("most recomputation", "return min(", "return max("),
    one("an empty list when nothing fits", "default=None)", "default=[])"),
    one("always all", "for r in range(n + 1)", "for r in (n,)"),
    one("never none", "for r in range(n + 1)", "for r in range(1, n + 1)"),
    one("strictly below", "held(chosen) <= budget", "held(chosen) < 0.9 * budget"),
    one("budget ignored", "if held(chosen) <= budget", "if True"),
]  # fmt: skip

RIGHT = {
    "bit masks": """
def choose_blocks(kept, inputs, flops, budget):
    best = None
    for mask in range(2 ** len(kept)):
        on = [bool(mask >> i & 1) for i in range(len(kept))]
        memory = sum(i if c else k for c, k, i in zip(on, kept, inputs))
        memory += max([k for c, k in zip(on, kept) if c] + [0])
        cost = sum(f for c, f in zip(on, flops) if c)
        if memory <= budget and (best is None or cost < best[0]):
            best = cost, [i for i, c in enumerate(on) if c]
    return None if best is None else best[1]
""",
    "recursion": """
def choose_blocks(kept, inputs, flops, budget):
    answers = []

    def go(i, chosen, memory, largest, cost):
        if i == len(kept):
            if memory + largest <= budget:
                answers.append((cost, chosen))
            return
        go(i + 1, chosen, memory + kept[i], largest, cost)
        go(i + 1, chosen | {i}, memory + inputs[i], max(largest, kept[i]), cost + flops[i])

    go(0, frozenset(), 0, 0, 0)
    return min(answers, key=lambda a: a[0])[1] if answers else None
""",
}
