"""Checks of the gap between neighbouring numbers: among the normal ones, and below the smallest of them."""

import random
from collections.abc import Callable

from ...formats.float_format import FORMATS
from ..base import Check, Evidence

Gap = Callable[[float, int, int], float]


def _formats(rng: random.Random) -> list[tuple[int, int]]:
    """Return (exponent bits, fraction bits) of PyTorch's formats and of three that nobody makes."""
    known = [(form.exponent_bits, form.fraction_bits) for form in FORMATS.values()]
    return known + [(rng.randint(3, 8), rng.randint(2, 20)) for _ in range(3)]


def _lowest(exponent_bits: int) -> int:
    """Return the exponent of the smallest normal number."""
    return 1 - (2 ** (exponent_bits - 1) - 1)


def _first_wrong(seen: Evidence, expected: Evidence) -> str | None:
    for (value, exponent_bits, fraction_bits, true), (*_, yours) in zip(expected["gaps"], seen["gaps"], strict=True):
        if not abs(yours - true) <= 1e-9 * true:
            return (
                f"With {exponent_bits} exponent and {fraction_bits} fraction bits the gap above {value:.6g} is "
                f"{true:.4g}; you say {yours:.4g}, {yours / true:.3g} times as much."
            )
    return None


class GapOfNormalNumbers(Check):
    """The gap above a normal number, in any format."""

    hint = (
        "How many numbers does a format with f fraction bits have between 1 and 2? And between 2 and 4?\n"
        "Between 2^e and 2^(e+1) there are 2^f numbers, evenly spaced.\n"
        "`math.frexp(value)` gives a fraction between 1/2 and 1, so its exponent is one higher than e."
    )

    @staticmethod
    def probe(seed: int, gap: Gap) -> Evidence:
        rng = random.Random(seed)
        gaps = []
        for e, f in _formats(rng):
            lowest = _lowest(e)
            highest = 2 ** (e - 1) - 2
            exponents = [0, lowest, rng.randint(lowest, highest), rng.randint(lowest, highest)]
            for exponent, fraction in zip(exponents, (0, 0, rng.randrange(2**f), 2**f - 1), strict=True):
                value = (1 + fraction / 2**f) * 2.0**exponent
                gaps.append([value, e, f, float(gap(value, e, f))])
        return {"gaps": gaps}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _first_wrong(seen, expected)
        pairs = list(zip(seen["gaps"], expected["gaps"], strict=True))
        if wrong and all(yours == 2 * true for (*_, yours), (*_, true) in pairs):
            return "Every gap is twice as large as it should be: which power of two is just below the value?"
        if wrong and all(abs(yours - value * 2.0**-f) <= 1e-9 * yours for (*_, yours), (value, _, f, _) in pairs):
            return "Your gap grows with every value. Between two powers of two all gaps are the same."
        return wrong


class GapOfSubnormalNumbers(Check):
    """Below the smallest normal number, the gap is what it is at that number."""

    hint = (
        "Which exponent does the smallest normal number have? Below it the exponent field is zero.\n"
        "The numbers go on to zero with the spacing that they have at the smallest normal number: take the larger of "
        "two exponents."
    )

    @staticmethod
    def probe(seed: int, gap: Gap) -> Evidence:
        rng = random.Random(seed)
        gaps = []
        for e, f in _formats(rng):
            for fraction in (1, rng.randrange(1, 2**f), 2**f - 1):
                value = fraction / 2**f * 2.0 ** _lowest(e)
                gaps.append([value, e, f, float(gap(value, e, f))])
        return {"gaps": gaps}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _first_wrong(seen, expected)
        return f"{wrong} These values lie below the smallest normal number." if wrong else None


GAP = (GapOfNormalNumbers, GapOfSubnormalNumbers)
