"""Wrong and right answers for the practice task of gradient accumulation."""

from . import Mutant

LARGEST, FINDS = "gradient_accumulation.largest", "finds_the_largest_that_fits"


def one(name: str, old: str, new: str) -> Mutant:
    return Mutant(name, LARGEST, FINDS, ((old, new),))


MUTANTS = [
    one("no fixed part", "fixed = whole - each * most", "fixed = 0"),
    one("rounds up", "(budget - fixed) // each", "-(-(budget - fixed) // each)"),
    one("beyond the batch", "min(most, int((budget - fixed) // each))", "int((budget - fixed) // each)"),
    one("never looks at the flat part", "rows if peak_bytes(rows) <= budget else 0", "rows"),
    one("one less on the flat part", "if peak_bytes(rows) <= budget else 0", "if peak_bytes(rows) <= budget else rows - 1"),
    one("fixed part twice", "(budget - fixed)", "(budget - 2 * fixed)"),
    Mutant("measures on the flat part", LARGEST, FINDS, (
        ("peak_bytes(most // 2), peak_bytes(most)", "peak_bytes(16), peak_bytes(most)"),
        ("(most - most // 2)", "(most - 16)"))),
    one("row by row", "half, whole = peak_bytes(most // 2), peak_bytes(most)",
        "half, whole = peak_bytes(most // 2), peak_bytes(most)\n    [peak_bytes(m) for m in range(3, 20)]"),
    one("measures an empty micro-batch", "rows = max(1, ", "rows = max(0, "),
    one("powers of two only", "return rows if", "rows = 2 ** (rows.bit_length() - 1)\n    return rows if"),
]  # fmt: skip

RIGHT = {
    "by halves": """
def largest_micro_batch(peak_bytes, budget, most):
    high = peak_bytes(most)
    if high <= budget:
        return most
    slope = (high - peak_bytes(most // 2)) * 2 // most
    rows = most - -(-(high - budget) // slope)
    if rows < 1:
        return 0
    return rows if peak_bytes(rows) <= budget else 0
""",
    "by a fitted line": """
import math

import numpy as np


def largest_micro_batch(peak_bytes, budget, most):
    sizes = [most // 2, most]
    each, fixed = np.polyfit(sizes, [peak_bytes(size) for size in sizes], 1)
    rows = min(math.floor((budget - fixed) / each + 1e-6), most)
    if rows < 1 or peak_bytes(1) > budget:
        return 0
    return rows
""",
}
