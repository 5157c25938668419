"""Checks of the gap between neighboring numbers: among the normal ones, and below the smallest of them."""

import random
from collections.abc import Callable, Iterator
from numbers import Real

from ...formats.float_format import FORMATS
from ..base import Check, Evidence

Gap = Callable[[float, int, int], float]


def _formats(rng: random.Random) -> list[tuple[int, int]]:
    """Return (exponent bits, fraction bits) of PyTorch's formats and of three that do not exist."""
    known = [(form.exponent_bits, form.fraction_bits) for form in FORMATS.values()]
    return known + [(rng.randint(3, 8), rng.randint(2, 20)) for _ in range(3)]


def _values(rng: random.Random, exponent_bits: int, fraction_bits: int) -> Iterator[tuple[str, float]]:
    """Yield values of a format, with the kind of number that each is: at both ends of its range and in between."""
    highest = 2 ** (exponent_bits - 1) - 1
    lowest, full = 1 - highest, 2**fraction_bits
    inside = [rng.randint(lowest, highest - 1) for _ in range(2)]
    for exponent, fraction in (
        (0, 0),
        (lowest, 0),
        (inside[0], rng.randrange(full)),
        (inside[1], full - 1),
        (highest, rng.randrange(full - 1)),
    ):
        yield "normal", (1 + fraction / full) * 2.0**exponent
    for fraction in (1, rng.randrange(1, full), full - 1):
        yield "subnormal", fraction / full * 2.0**lowest


def observe(seed: int, gap: Gap) -> Evidence:
    """Ask for the gaps of all values. A row is [value, exponent bits, fraction bits, gap]."""
    rng = random.Random(seed)
    seen: Evidence = {"normal": [], "subnormal": [], "no numbers": []}
    for e, f in _formats(rng):
        for kind, value in _values(rng, e, f):
            answer = gap(value, e, f)
            if isinstance(answer, Real):
                seen[kind].append([value, e, f, float(answer)])
            else:
                seen["no numbers"].append(type(answer).__name__)
    return seen


def _first_wrong(seen: Evidence, expected: Evidence, kind: str) -> str | None:
    if seen["no numbers"]:
        return f"`gap` returns a {seen['no numbers'][0]}. Return a Python number: a float."
    for (value, exponent_bits, fraction_bits, true), (*_, yours) in zip(expected[kind], seen[kind], strict=True):
        if not abs(yours - true) <= 1e-9 * true:
            return (
                f"With {exponent_bits} exponent and {fraction_bits} fraction bits the gap above {value:.6g} is "
                f"{true:.4g}; you return {yours:.4g}, which is {yours / true:.3g} times as much."
            )
    return None


class GapOfNormalNumbers(Check):
    """The gap above a normal number, in any format."""

    hint = (
        "How many numbers does a format with f fraction bits have between 1 and 2? And between 2 and 4?\n"
        "Between 2^e and 2^(e+1) there are 2^f numbers, evenly spaced.\n"
        "`math.frexp(value)` gives a fraction between 1/2 and 1, so its exponent is one higher than e."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _first_wrong(seen, expected, "normal")
        if not wrong or seen["no numbers"]:
            return wrong
        pairs = list(zip(seen["normal"], expected["normal"], strict=True))
        if all(yours == 2 * true for (*_, yours), (*_, true) in pairs):
            return "Every gap is twice as large as it should be: which power of two is just below the value?"
        if all(abs(yours - value * 2.0**-f) <= 1e-9 * yours for (*_, yours), (value, _, f, _) in pairs):
            return "Your gap grows with every value. Between two powers of two all gaps are the same."
        return wrong


class GapOfSubnormalNumbers(Check):
    """Below the smallest normal number, the gap no longer shrinks."""

    hint = (
        "Which exponent does the smallest normal number have? Below it the exponent field is zero.\n"
        "From there down to zero, the numbers keep the spacing that they have at the smallest normal number: take the "
        "larger of two exponents."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _first_wrong(seen, expected, "subnormal")
        return f"{wrong} This value lies below the smallest normal number." if wrong and seen["subnormal"] else wrong


GAP = (GapOfNormalNumbers, GapOfSubnormalNumbers)
