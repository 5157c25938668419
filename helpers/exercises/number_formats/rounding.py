"""Checks of rounding to the nearest number with fewer fraction bits: nearest, ties, carries, a tensor of its own."""

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from ..base import Check, Evidence

Round = Callable[[Tensor, int], Tensor]
SHAPES = ((), (3, 4), (2, 1, 5), (0,))


def _near(bits: int, generator: torch.Generator) -> Tensor:
    """Return numbers from all of FP32's normal range, none in the middle of a gap, but some beside it."""
    scale = torch.exp2(torch.randint(-126, 127, (300,), generator=generator).float())
    x = (1 + torch.rand(300, generator=generator)) * scale * (torch.randint(2, (300,), generator=generator) * 2 - 1)
    middle = (x.view(torch.int32) << 9 + bits) == -(2**31)  # of the dropped bits only the first is set
    beside = (_ties(bits).view(torch.int32)[:, None] + torch.tensor([-1, 1], dtype=torch.int32)).flatten()
    return torch.cat([x[~middle], beside.view(torch.float32), torch.zeros(1)])


def _ties(bits: int) -> Tensor:
    """Return numbers in the middle of a gap: after even fractions and odd ones, after the first and the last."""
    whole = torch.arange(2**bits, 2 ** (bits + 1))
    ends = torch.cat([whole[:8], whole[-8:]]) + 0.5
    return torch.cat([ends, -ends])


def _below_powers(rng: random.Random) -> Tensor:
    """Return what lies just below some powers of two, and the largest number."""
    powers = 2.0 ** torch.tensor([1.0, rng.randint(-30, -2), rng.randint(2, 30), 127])
    below = torch.cat([torch.nextafter(powers, torch.zeros(())), torch.tensor([torch.finfo(torch.float32).max])])
    return torch.cat([below, -below])


def observe(seed: int, round_to: Round) -> Evidence:
    """Round numbers of three kinds to several fractions, and tensors of several shapes."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    odd = rng.choice([3, 5, 13, 18, 22])
    inputs = {
        "near": {bits: _near(bits, generator) for bits in (7, 10, 1, odd)},
        "ties": {bits: _ties(bits) * 2.0 ** rng.randint(-20, 10) for bits in (7, rng.choice([4, 10, 12, 22]))},
        "carries": {bits: _below_powers(rng) for bits in (7, 10, odd)},
    }
    seen: Evidence = {"shapes": [], "dtypes": [], "untouched": True, "whole": True}
    for kind, tensors in inputs.items():
        seen[kind] = {}
        for bits, x in tensors.items():
            rounded = round_to(x.clone(), bits)
            seen[kind][str(bits)] = {"x": x.tolist(), "rounded": rounded.tolist()}
            seen["whole"] &= not rounded.is_floating_point()
    for shape in SHAPES:
        for bits in (7, odd):
            x = torch.randn(shape, generator=generator)
            before = x.clone()
            rounded = round_to(x, bits)
            seen["shapes"].append(list(rounded.shape))
            seen["dtypes"].append(str(rounded.dtype))
            seen["untouched"] &= torch.equal(before, x)
    return seen


def _kept(x: Tensor, fraction_bits: int) -> Tensor:
    """Return `x` with all but its upper fraction bits cut off."""
    return (x.view(torch.int32) & -(1 << 23 - fraction_bits)).view(torch.float32)


def _wrong(seen: Evidence, expected: Evidence, kind: str) -> list[tuple[str, float, float, float]]:
    """Return (fraction bits, input, the answer's result, the right one) of each wrong result."""
    return [
        (bits, x, yours, true)
        for bits, wanted in expected[kind].items()
        for x, true, yours in zip(wanted["x"], wanted["rounded"], seen[kind][bits]["rounded"], strict=True)
        if yours != true
    ]


def _first_wrong(seen: Evidence, expected: Evidence, kind: str) -> str | None:
    if seen["whole"]:
        return "Your result holds integers, the bits themselves: `.view(torch.float32)` converts them back."
    for bits, x, yours, true in _wrong(seen, expected, kind):
        return f"With {bits} fraction bits {x:.9g} becomes {true:.9g}; yours becomes {yours:.9g}."
    return None


class GoesToTheNearest(Check):
    """Each number becomes the nearest one with that many fraction bits."""

    hint = (
        "Which bits of `x.view(torch.int32)` are to be zero? There are 23 − fraction_bits of them.\n"
        "Clearing bits rounds toward zero. To round to nearest, first add half of what the last kept bit is worth.\n"
        "Sign and fraction are separate fields, so adding to the integer makes negative numbers larger in "
        "magnitude, too."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        first = _first_wrong(seen, expected, "near")
        if not first or seen["whole"]:
            return first
        all_wrong = _wrong(seen, expected, "near")
        if all(math.frexp(x)[1] != math.frexp(true)[1] for _, x, _, true in all_wrong):
            return "Wrong where the fraction was full: a carry out of the fraction must go into the exponent."
        if "7" not in {bits for bits, *_ in all_wrong}:
            return f"With 7 fraction bits, as in BF16, everything is right; with other bit counts it is not. {first}"
        cut = (_kept(torch.tensor(e["x"]), int(bits)).tolist() for bits, e in expected["near"].items())
        if all(e["rounded"] == bits for e, bits in zip(seen["near"].values(), cut, strict=True)):
            return (
                "No result is larger in magnitude than its input: the lower bits are cut off, and nothing is rounded."
            )
        return first


class TiesGoToEven(Check):
    """A number halfway between two neighbors becomes the one whose last kept bit is zero."""

    hint = (
        "A number exactly in the middle goes up if the last kept bit is 1, and down if it is 0.\n"
        "Add half minus one, and then the last kept bit itself: `(bits >> dropped) & 1`."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["whole"]:
            return _first_wrong(seen, expected, "ties")
        x, yours = expected["ties"]["7"]["x"], seen["ties"]["7"]["rounded"]
        if all(abs(mine) > abs(value) for value, mine in zip(x, yours, strict=True)):
            return "Every tie rounds away from zero. Look at the last bit that is kept."
        if all(abs(mine) < abs(value) for value, mine in zip(x, yours, strict=True)):
            return "Every tie rounds toward zero. Look at the last bit that is kept."
        return _first_wrong(seen, expected, "ties")


class CarriesIntoTheExponent(Check):
    """A number just below a power of two may round up to it; beyond the largest number the result is infinity."""

    hint = (
        "1.9999 with 7 fraction bits is 2: the fraction is full, and the exponent grows by one.\n"
        "If you add to the integer, the carry does it by itself: the exponent's bits are just above the fraction's, "
        "and the pattern after the largest number is infinity's."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_wrong(seen, expected, "carries")


class ReturnsANewTensor(Check):
    """The result is an FP32 tensor of the same shape, and the input stays as it was."""

    hint = "`view` shares memory with the tensor: `bits += ...` writes into it, `bits + ...` does not."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["untouched"]:
            return "`x` has changed. Its view shares its memory: use operations that return a new tensor."
        for yours, wanted in zip(seen["dtypes"], expected["dtypes"], strict=True):
            if yours != wanted:
                return f"The result should be in {wanted}; yours is in {yours}."
        for yours, wanted in zip(seen["shapes"], expected["shapes"], strict=True):
            if yours != wanted:
                return f"For an `x` of shape {wanted} you return one of shape {yours}."
        return None


ROUNDING = (GoesToTheNearest, TiesGoToEven, CarriesIntoTheExponent, ReturnsANewTensor)
