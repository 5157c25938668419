"""Check of the largest micro-batch that fits, found with few measurements."""

import random
from collections.abc import Callable
from numbers import Integral
from typing import Any

from ..base import Check, Evidence

Largest = Callable[[Callable[[int], int], int, int], int]
MOST_CALLS = 4


def largest_that_fits(flat: int, fixed: int, each: int, most: int, budget: int) -> int:
    """Return the most rows, up to `most`, whose peak is affordable. It is the larger of `flat` and the line."""
    return 0 if budget < flat else min(most, max(0, (budget - fixed) // each))


def _found(seed: int, budgets: dict[str, Callable[..., int]], largest_micro_batch: Largest) -> Evidence:
    """Let the answer find the micro-batch for a budget on each of several lines.

    Args:
        budgets: by name, functions that draw a budget from (random numbers, flat, fixed, each, most).
    """
    rng = random.Random(seed)
    seen: dict[str, Any] = {}
    for line, share, half in (
        ("a large fixed part", 0.7, rng.randint(100, 200)),
        ("a small fixed part", 0.05, rng.randint(100, 200)),
        ("nothing but rows", 0.0, rng.randint(100, 200)),
        ("a batch of two rows", 0.3, 1),
    ):
        each = rng.randint(50_000, 90_000)
        most = 2 * half
        fixed = int(share / (1 - share) * each * most)
        flat = fixed + each * min(half, rng.randint(20, 40))
        for name, draw in budgets.items():
            measured: list[int] = []

            def peak_bytes(m: int, line: tuple = (flat, fixed, each), measured: list = measured) -> int:
                measured.append(m)
                return max(line[0], line[1] + line[2] * m)

            budget = draw(rng, flat, fixed, each, most)
            found = largest_micro_batch(peak_bytes, budget, most)
            seen[f"{line}, {name}"] = {
                "line": [flat, fixed, each],
                "most": most,
                "budget": budget,
                "found": int(found) if isinstance(found, Integral) else None,
                "kind": type(found).__name__,
                "measured": measured,
            }
    return seen


def _wrong(seen: Evidence, expected: Evidence) -> str | None:
    for case, want in expected.items():
        if seen[case]["found"] is None:
            return f"{case}: you return a {seen[case]['kind']}; return the number of rows as an int."
        right = largest_that_fits(*want["line"], want["most"], want["budget"])
        if seen[case]["found"] != right:
            flat, fixed, each = want["line"]
            return (
                f"{case}: you found {seen[case]['found']} of {want['most']} rows; the largest that fits is {right}. "
                f"The peak of m rows is the larger of {flat:,} and {fixed:,} + {each:,} x m bytes, and the budget is "
                f"{want['budget']:,}."
            )
    return None


def _between(rng: random.Random, flat: int, fixed: int, each: int, most: int) -> int:
    """Draw a budget between the peaks of two micro-batches that are on the line."""
    return fixed + each * _rows_on_the_line(rng, most) + rng.randint(1, each - 1)


def _rows_on_the_line(rng: random.Random, most: int) -> int:
    return rng.randint(min(60, most // 2), max(1, most - 2))


def _more_than_enough(_: random.Random, flat: int, fixed: int, each: int, most: int) -> int:
    return fixed + 2 * most * each


class FindsTheLargestThatFits(Check):
    """The largest micro-batch whose peak is within the budget."""

    hint = (
        "Two points that you know to be on the line give `each` and `fixed`.\n"
        "Solve fixed + each x m = budget for m, and round down."
    )

    @staticmethod
    def probe(seed: int, largest_micro_batch: Largest) -> Evidence:
        return _found(seed, {"some sizes fit": _between, "all sizes fit": _more_than_enough}, largest_micro_batch)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class SpendsTheWholeBudget(Check):
    """A micro-batch whose peak is exactly the budget fits."""

    hint = "peak_bytes(m) <= budget: exactly the budget is enough."

    @staticmethod
    def probe(seed: int, largest_micro_batch: Largest) -> Evidence:
        budgets = {
            "the budget is a peak": lambda rng, flat, fixed, each, most: fixed + each * _rows_on_the_line(rng, most),
            "the budget is the peak of the whole batch": lambda _, flat, fixed, each, most: fixed + each * most,
            "the budget is the flat part": lambda _, flat, *rest: flat,
        }
        return _found(seed + 1, budgets, largest_micro_batch)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class SaysWhenNothingFits(Check):
    """When not even one row fits, the answer is 0: on the flat part, fewer rows do not help."""

    hint = (
        "The line may promise that some rows fit although the flat part is above the budget: take one more measurement."
    )

    @staticmethod
    def probe(seed: int, largest_micro_batch: Largest) -> Evidence:
        budgets = {
            "less than the flat part": lambda rng, flat, fixed, each, most: min(
                flat - 1, fixed + each * rng.randint(2, 8)
            ),
            "a byte less than the flat part": lambda _, flat, *rest: flat - 1,
            "less than nothing on the line": lambda _, flat, fixed, each, most: fixed - 3 * each,
        }
        return _found(seed + 2, budgets, largest_micro_batch)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class MeasuresFourTimes(Check):
    """peak_bytes is called at most four times, with 1 to `most` rows."""

    hint = "Two measurements for the line, one to see whether its answer fits the budget."

    @staticmethod
    def probe(seed: int, largest_micro_batch: Largest) -> Evidence:
        budgets = {
            "some sizes fit": _between,
            "all sizes fit": _more_than_enough,
            "nothing fits": lambda _, flat, fixed, each, most: fixed - 3 * each,
        }
        return _found(seed + 3, budgets, largest_micro_batch)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            measured, most = seen[case]["measured"], want["most"]
            if len(measured) > MOST_CALLS:
                return (
                    f"{case}: you called peak_bytes {len(measured)} times; the limit is {MOST_CALLS}. Two points give "
                    "the line."
                )
            if any(not 1 <= m <= most for m in measured):
                return f"{case}: you called peak_bytes with {measured}; the sizes to measure go from 1 to {most}."
        return None


LARGEST = (FindsTheLargestThatFits, SpendsTheWholeBudget, SaysWhenNothingFits, MeasuresFourTimes)
