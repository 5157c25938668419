"""Check of the fair order, and of the labels and positions that follow the tokens into their chunks."""

from collections.abc import Callable
from typing import Any

import torch

from ..base import Check, Evidence

Order = list[list[int]]
Zigzag = Callable[[int], Order]
Cut = Callable[[torch.Tensor, Order, int], Any]
WORLDS = (1, 2, 3, 4, 8)
CASES: dict[str, tuple[Order, int, int]] = {  # order, sequences, tokens of a chunk
    "two ranks, a chunk of 4 tokens each": ([[0], [1]], 2, 4),
    "one rank, one chunk of 4 tokens": ([[0]], 2, 4),
    "three ranks, first and last chunks of 4 tokens": ([[0, 5], [1, 4], [2, 3]], 2, 4),
    "two ranks, chunks of 4 tokens in any order": ([[3, 0, 4], [1, 5, 2]], 2, 4),
    "two ranks, chunks of one token, one sequence": ([[0, 3], [1, 2]], 1, 1),
}


class SharesOutFairly(Check):
    """zigzag gives each rank two chunks, each chunk once, and all ranks the same number of scores."""

    hint = (
        "Rows of chunk i attend to i full chunks and half of their own. Which two give each rank the same work?\n"
        "Pair the cheapest chunk with the most expensive, the second cheapest with the second most expensive, etc."
    )

    @staticmethod
    def probe(seed: int, zigzag: Zigzag, _: Cut) -> Evidence:
        return {str(n): [[int(chunk) for chunk in held] for held in zigzag(n)] for n in WORLDS}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for n in WORLDS:
            order, ranks = seen[str(n)], f"{n} rank{'s' * (n > 1)}"
            if len(order) != n or any(len(held) != 2 for held in order):
                return f"{ranks}: each rank needs two chunks; yours have {[len(held) for held in order]}."
            if sorted(chunk for held in order for chunk in held) != list(range(2 * n)):
                return f"{ranks}: {order} does not have each of the chunks 0 to {2 * n - 1} once."
            work = [sum(chunk + 0.5 for chunk in held) for held in order]
            if len(set(work)) > 1:
                shares = ", ".join(f"{w:g}" for w in work)
                return f"{ranks}: with {order} the ranks compute the scores of {shares} chunks. Make these equal."
            if any(held != sorted(held) for held in order):
                return f"{ranks}: {order} is fair, but not in ascending order on each rank."
        return None


def observe(seed: int, _: Zigzag, cut: Cut) -> Evidence:
    """Return what each rank gets of sequences of random tokens."""
    seen: Evidence = {}
    for case, (order, batch, chunk) in CASES.items():
        length = batch * (chunk * sum(map(len, order)) + 1)
        tokens = torch.randperm(1000, generator=torch.Generator().manual_seed(seed))[:length].view(batch, -1)
        kept, given, ranks = tokens.clone(), [list(held) for held in order], []
        for rank in range(len(order)):
            try:
                ids, labels, positions = cut(tokens, given, rank)
            except IndexError as error:
                error.args = (f"{error}, with {case}",)
                raise
            ranks.append(
                {
                    "ids": ids.tolist(),
                    "labels": labels.tolist(),
                    "positions": positions.tolist(),
                    "dtype": str(positions.dtype).removeprefix("torch."),
                }
            )
        changed = {"tokens": not torch.equal(tokens, kept), "order": given != order}
        seen[case] = {"ranks": ranks, "changed": [name for name, is_so in changed.items() if is_so]}
    return seen


def _differing(seen: Evidence, expected: Evidence, what: str) -> str | None:
    for case, want in expected.items():
        for rank, right in enumerate(want["ranks"]):
            got = seen[case]["ranks"][rank][what]
            if got != right[what]:
                head = f"{case}, {what} of rank {rank}: "
                shape, right_shape = (tuple(torch.tensor(numbers).shape) for numbers in (got, right[what]))
                if shape != right_shape:
                    return head + f"you return the shape {shape}; {right_shape} is right."
                return head + f"you return {_first(got)}; {_first(right[what])} is right."
    return None


def _first(rows: list[Any]) -> str:
    """Return the first sequence's numbers."""
    return str(rows[0] if rows and isinstance(rows[0], list) else rows)


class CutsTheInputs(Check):
    """ids are the inputs of this rank's chunks, in the order in which it holds them."""

    hint = "T is one less than the number of tokens. How long is a chunk, and where does chunk number p begin?"

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        changed = next((case for case in expected if seen[case]["changed"]), None)
        if changed:
            return f"{changed}: {' and '.join(seen[changed]['changed'])} must not be changed in place."
        return _differing(seen, expected, "ids")


class LabelsOfTheSequence(Check):
    """A label is the token that follows in the sequence, even after the last token of a chunk."""

    hint = (
        "What follows the last token of a chunk? It is on another rank, or in the middle of this one.\n"
        "Make the labels of the whole sequence first, tokens[:, 1:], and cut them like the inputs."
    )

    after = ("cuts_the_inputs",)

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _differing(seen, expected, "labels")


class PositionsOfTheSequence(Check):
    """positions hold each token's position in the sequence, as int64."""

    hint = "Number the tokens of the whole sequence with torch.arange(T), and cut these numbers like the inputs."

    after = ("cuts_the_inputs",)

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if said := _differing(seen, expected, "positions"):
            return said
        dtypes = [rank["dtype"] for case in seen.values() for rank in case["ranks"] if rank["dtype"] != "int64"]
        return f"positions are {dtypes[0]}, not int64." if dtypes else None


CUT = (SharesOutFairly, CutsTheInputs, LabelsOfTheSequence, PositionsOfTheSequence)
