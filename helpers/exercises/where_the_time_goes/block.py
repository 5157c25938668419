"""Check of the FLOPs of a transformer block, part by part, by both conventions for causal attention."""

import random
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

from ..base import Check, Evidence

_HELD_BACK = "Not judged until the parts of this check are there, as int: see the first check."


def _blocks(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the sizes of blocks: keys as wide as queries and narrower ones, MLPs with and without a gate."""
    rng = random.Random(seed)
    for case, kv, gated in (("GPT-2's block", 1, False), ("Llama's block, grouped keys", 4, True)):
        width = 64 * rng.randint(2, 8)
        sizes = {"batch": rng.randint(2, 5), "length": rng.choice((17, 33, 65)), "width": width}
        yield case, sizes | {"inner": 32 * rng.randint(9, 40), "kv_width": width // kv, "gated": gated}


def _counted(seed: int, block_flops: Callable[..., dict[str, int]], convention: str) -> Evidence:
    seen: Evidence = {}
    for case, sizes in _blocks(seed):
        answer = block_flops(*sizes.values(), convention)
        if not isinstance(answer, dict):
            seen[case] = {"returned": type(answer).__name__}
            continue
        whole = {str(part): int(flops) for part, flops in answer.items() if isinstance(flops, Integral)}
        seen[case] = {"flops": whole, "parts": sorted(map(str, answer)), "sizes": list(sizes.values())}
    return seen


def observe(seed: int, block_flops: Callable[..., dict[str, int]]) -> Evidence:
    """Count the FLOPs of each block by both conventions."""
    return {convention: _counted(seed, block_flops, convention) for convention in ("full square", "causal half")}


def _wrong_parts(seen: Evidence, expected: Evidence, parts: tuple[str, ...]) -> str | None:
    """Say which of `parts` has the wrong number of FLOPs; those that are not there are for the first check."""
    for case, want in expected["full square"].items():
        for part in parts:
            mine, right = seen["full square"][case].get("flops", {}).get(part), want["flops"][part]
            if mine is None:
                return _HELD_BACK
            if mine != right:
                batch, length, width, inner, kv_width, _ = want["sizes"]
                sizes = f"batch {batch}, length {length}, width {width}, inner {inner}, kv_width {kv_width}"
                return f"{case} ({sizes}): {part!r} takes {right:,} FLOPs; you count {mine / right:.4g} times as many."
    return None


class NamesEveryPart(Check):
    """The answer is a dictionary of whole numbers, for q, k, v, scores, values, out and mlp."""

    hint = "Seven entries, each an int. Use // where you halve."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        pairs = (
            (f"{block}, {how}", seen[how][block], want) for how in expected for block, want in expected[how].items()
        )
        for case, got, want in pairs:
            if "returned" in got:
                return f"{case}: return a dictionary; you return {got['returned']}."
            if got["parts"] != want["parts"]:
                missing = sorted(set(want["parts"]) - set(got["parts"]))
                more = len(set(got["parts"]) - set(want["parts"]))
                return f"{case}: missing keys: {missing or 'none'}; keys that are not in the contract: {more}."
            broken = sorted(set(want["parts"]) - set(got["flops"]))
            if broken:
                return f"{case}: FLOPs are counted, so they are whole numbers (int); these are not: {broken}."
        return None


class CountsProjections(Check):
    """q, k, v and out are matmuls of all tokens with a matrix; those of k and v may be narrower."""

    hint = "(m, k) times (k, n) takes 2·m·n·k FLOPs. m is all tokens of the batch. How wide is the result?"
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_parts(seen, expected, ("q", "k", "v", "out"))


class CountsAttention(Check):
    """At the full square every query is paired with every key of its sequence, for scores and for values."""

    hint = "For each sequence and head: (T, d) times (d, T), then (T, T) times (T, d). Heads times d is the width."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_parts(seen, expected, ("scores", "values"))


class HalvesCausalAttention(Check):
    """By the other convention, "causal half", scores and values take exactly half, and nothing else changes."""

    hint = "Half of the full square, as the convention says; not T·(T + 1) / 2, and no other part."

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        mine, right = _shares(seen), _shares(expected)
        for case, want in right.items():
            for part, share in want.items():
                if any(part not in seen[how][case].get("flops", {}) for how in expected):
                    return _HELD_BACK
                if part not in mine[case]:
                    return f"{case}: {part!r} is 0 at the full square, so it has no half. Mend that first."
                if mine[case][part] != share:
                    return (
                        f"{case}: {part!r} should be {share:g} times as much as at the full square; it is "
                        f"{mine[case][part]:.4g}."
                    )
        return None


def _shares(evidence: Evidence) -> dict[str, dict[str, float]]:
    """Return what each part takes by the causal convention, as a share of the full square's."""
    shares: dict[str, dict[str, float]] = {}
    for case, half in evidence["causal half"].items():
        full = evidence["full square"][case].get("flops", {})
        shares[case] = {part: flops / full[part] for part, flops in half.get("flops", {}).items() if full.get(part)}
    return shares


class CountsTheMlp(Check):
    """An MLP is two matrices, up and down; one with a gate is three."""

    hint = "Up and down take 2·tokens·width·inner FLOPs each, and a gate is one more matmul of the size of `up`."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_parts(seen, expected, ("mlp",))


BLOCK = (NamesEveryPart, CountsProjections, CountsAttention, HalvesCausalAttention, CountsTheMlp)
