"""Practice check of gradient accumulation: the largest micro-batch that fits, found with few measurements."""

import random
from collections.abc import Callable
from typing import Any

from .base import Check, Evidence, Part

MOST_CALLS = 4


def largest_that_fits(flat: int, fixed: int, each: int, budget: int) -> int:
    """Return the largest micro-batch of 1 to 256 rows whose peak, the larger of `flat` and the line, is affordable."""
    return 0 if budget < flat else min(256, max(0, (budget - fixed) // each))


class FindsTheLargestThatFits(Check):
    """The largest micro-batch whose peak is within the budget, with at most four measurements."""

    hint = (
        "Measure where you know that you are on the line: it gives `each` and `fixed`. Solve for the rows, round down, "
        "and measure there once more, for the flat part may lie above the budget."
    )

    @staticmethod
    def probe(seed: int, largest_micro_batch: Callable[..., int]) -> Evidence:
        rng = random.Random(seed)
        seen: dict[str, Any] = {}
        for case, share in (("a large fixed part", 0.7), ("a small fixed part", 0.05), ("nothing but rows", 0.0)):
            each = rng.randint(50_000, 90_000)
            fixed = int(share / (1 - share) * each * 256)
            flat = fixed + each * rng.randint(20, 40)
            some, few = rng.randint(60, 200), rng.randint(2, 8)
            for name, fits in (
                ("", some),
                (", all of it fits", 400),
                (", less than the flat part", few),
                (", nothing", -3),
            ):
                measured: list[int] = []

                def peak_bytes(m: int, line: tuple = (flat, fixed, each), measured: list = measured) -> int:
                    measured.append(m)
                    return max(line[0], line[1] + line[2] * m)

                budget = fixed + each * fits + each // 2
                found = int(largest_micro_batch(peak_bytes, budget, 256))
                seen[case + name] = {
                    "found": found,
                    "measured": measured,
                    "line": [flat, fixed, each],
                    "budget": budget,
                }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if len(got["measured"]) > MOST_CALLS:
                return f"{case}: you measured {len(got['measured'])} times; {MOST_CALLS} must do."
            if any(not 1 <= m <= 256 for m in got["measured"]):
                return f"{case}: you measured micro-batches of {got['measured']}; they go from 1 to 256 here."
            right = largest_that_fits(*want["line"], want["budget"])
            if got["found"] != right:
                return f"{case}: you found {got['found']}; the largest that fits is {right}."
        return None


PARTS = (Part("gradient_accumulation.largest", ("largest_micro_batch",), (FindsTheLargestThatFits,)),)
