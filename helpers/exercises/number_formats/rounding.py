"""Checks of rounding to the nearest number with fewer fraction bits: nearest, ties, carries, a tensor of its own."""

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from ..base import Check, Evidence

Round = Callable[[Tensor, int], Tensor]


def _kept(x: Tensor, fraction_bits: int) -> Tensor:
    """Return `x` with all but its upper fraction bits cut off."""
    return (x.view(torch.int32) & -(1 << 23 - fraction_bits)).view(torch.float32)


def _wrong(seen: Evidence, expected: Evidence) -> list[tuple[str, float, float, float]]:
    """Return (fraction bits, input, the answer's result, the right one) of each wrong result."""
    return [
        (bits, x, yours, true)
        for bits, wanted in expected["rounded"].items()
        for x, yours, true in zip(expected["x"][bits], seen["rounded"][bits], wanted, strict=True)
        if yours != true
    ]


def _first_wrong(seen: Evidence, expected: Evidence) -> str | None:
    if seen["whole"]:
        return "Your result holds whole numbers, the bits themselves: `.view(torch.float32)` takes them back."
    for bits, x, yours, true in _wrong(seen, expected):
        return f"With {bits} fraction bits {x:.9g} becomes {true:.9g}; yours becomes {yours:.9g}."
    return None


def _rounded(round_to: Round, inputs: dict[int, Tensor]) -> Evidence:
    """Return the inputs and what `round_to` makes of them, by fraction bits."""
    results = {str(bits): round_to(x.clone(), bits) for bits, x in inputs.items()}
    return {
        "x": {str(bits): x.tolist() for bits, x in inputs.items()},
        "rounded": {bits: result.tolist() for bits, result in results.items()},
        "whole": not any(result.is_floating_point() for result in results.values()),
    }


class GoesToTheNearest(Check):
    """Each number becomes the nearest one that has so many fraction bits."""

    hint = (
        "Which bits of `x.view(torch.int32)` are to be zero? There are 23 − fraction_bits of them.\n"
        "Clearing bits goes towards zero. To go to the nearest, first add half of what the last kept bit is worth.\n"
        "Sign and fraction are separate fields, so adding to the integer makes negative numbers larger in size, too."
    )

    @staticmethod
    def probe(seed: int, round_to: Round) -> Evidence:
        rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        inputs = {}
        for bits in (7, 10, 1, rng.choice([3, 5, 13, 18, 22])):
            scale = torch.exp2(torch.randint(-60, 60, (300,), generator=generator).float())
            x = torch.randn(300, generator=generator) * scale
            middle = (x.view(torch.int32) << 9 + bits) == -(2**31)  # of the dropped bits only the first is set
            inputs[bits] = torch.cat([x[~middle], torch.zeros(1)])
        return _rounded(round_to, inputs)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["whole"]:
            return _first_wrong(seen, expected)
        all_wrong = _wrong(seen, expected)
        if all_wrong and all(math.frexp(x)[1] != math.frexp(true)[1] for _, x, _, true in all_wrong):
            return "Wrong where the fraction was full: a carry out of the fraction must go into the exponent."
        wrong = {bits for bits, *_ in all_wrong}
        if wrong and "7" not in wrong:
            return "With 7 fraction bits, as in BF16, all is right; with others it is not. Use `fraction_bits`."
        if wrong and all(seen["rounded"][b] == _kept(torch.tensor(expected["x"][b]), int(b)).tolist() for b in wrong):
            return "No result is larger in size than its input: the lower bits are cut off, and nothing is rounded."
        return _first_wrong(seen, expected)


class TiesGoToEven(Check):
    """Of two that are equally near, the one whose last kept bit is zero is taken."""

    hint = (
        "A number exactly in the middle goes up if the last kept bit is 1, and down if it is 0.\n"
        "Add half minus one, and then the last kept bit itself: `(bits >> dropped) & 1`."
    )

    @staticmethod
    def probe(seed: int, round_to: Round) -> Evidence:
        rng = random.Random(seed)
        inputs = {}
        for bits in (7, rng.choice([4, 10, 12, 22])):
            odd = torch.arange(2**bits, 2**bits + 16) + 0.5  # halfway, after even ones and odd ones
            inputs[bits] = torch.cat([odd, -odd]) * 2.0 ** rng.randint(-20, 10)
        return _rounded(round_to, inputs)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["whole"]:
            return _first_wrong(seen, expected)
        x, yours = expected["x"]["7"], seen["rounded"]["7"]
        if all(abs(mine) > abs(value) for value, mine in zip(x, yours, strict=True)):
            return "Every number in the middle goes away from zero. Look at the last bit that is kept."
        if all(abs(mine) < abs(value) for value, mine in zip(x, yours, strict=True)):
            return "Every number in the middle goes towards zero. Look at the last bit that is kept."
        return _first_wrong(seen, expected)


class CarriesIntoTheExponent(Check):
    """A number just below a power of two may become that power; past the largest number comes infinity."""

    hint = (
        "1.9999 with 7 fraction bits is 2: the fraction is full, and the exponent grows by one.\n"
        "If you add to the integer, the carry does it by itself: the exponent's bits are just above the fraction's, "
        "and the pattern after the largest number is infinity's."
    )

    @staticmethod
    def probe(seed: int, round_to: Round) -> Evidence:
        rng = random.Random(seed)
        powers = 2.0 ** torch.tensor([1.0, rng.randint(-30, -2), rng.randint(2, 30), 127])
        below = torch.nextafter(powers, torch.zeros(()))
        largest = torch.tensor([torch.finfo(torch.float32).max])
        x = torch.cat([below, -below, largest, -largest])
        return _rounded(round_to, {7: x, 10: x})

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_wrong(seen, expected)


class ReturnsANewTensor(Check):
    """The result is an FP32 tensor of the same shape, and the input stays as it was."""

    hint = "`view` shares memory with the tensor: `bits += ...` writes into it, `bits + ...` does not."

    @staticmethod
    def probe(seed: int, round_to: Round) -> Evidence:
        generator = torch.Generator().manual_seed(seed)
        seen: Evidence = {"shapes": [], "dtypes": [], "untouched": True}
        for shape in ((), (3, 4), (2, 1, 5)):
            x = torch.randn(shape, generator=generator)
            before = x.clone()
            rounded = round_to(x, 7)
            seen["shapes"].append(list(rounded.shape))
            seen["dtypes"].append(str(rounded.dtype))
            seen["untouched"] &= torch.equal(before, x)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["untouched"]:
            return "The tensor you were given has changed."
        if seen["dtypes"] != expected["dtypes"]:
            return f"The result should be in torch.float32; yours is in {seen['dtypes'][0]}."
        if seen["shapes"] != expected["shapes"]:
            return f"For shapes {expected['shapes']} you return {seen['shapes']}."
        return None


ROUNDING = (GoesToTheNearest, TiesGoToEven, CarriesIntoTheExponent, ReturnsANewTensor)
