"""Checks of stochastic rounding: to a neighbor, right on average, each element drawn by itself, `x` left alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..base import Check, Evidence

Round = Callable[[Tensor], Tensor]
DRAWS = 20_000  # for each number of `_numbers`
EXACT = (2.0, -0.375, 1.0, 0.0)  # numbers that BF16 has
EXACT_DRAWS = 2**21  # noise with one value too many moves them about 15 or 30 times
SIDE = 512  # of the square of numbers that are in the middle of a gap
CHANCE = 7 / SIDE  # independent elements correlate by 1 / SIDE, as a standard deviation
SHAPES = ((), (3, 4), (2, 1, 5), (0,))


def _numbers(seed: int) -> Tensor:
    """Return numbers of usual size, some that BF16 has, some near the largest, and subnormal ones."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.tensor([1.001, -1.001, 3e-5, -700.3, *EXACT, 3.3e38, -3e38, 9.51e-39, -1e-39, 3e-41])
    return torch.cat([torch.randn(50, generator=generator), edges])


def _neighbors(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the BF16 neighbors of `numbers`: the one nearer to zero, and the other."""
    cut = numbers.view(torch.int32) & ~0xFFFF
    return cut.view(torch.float32), (cut + 0x10000).view(torch.float32)


def _strongest(a: Tensor, b: Tensor) -> list[float]:
    """Return the shift at which the elements of two calls depend on each other most, and their correlation there.

    A tensor is not compared with itself at shift 0. Shifts go round: after the last element comes the first.
    """
    flat = [(call - call.mean()).flatten() for call in (a, b)]
    scale = (flat[0].norm() * flat[1].norm()).clamp(min=1e-9)
    spectra = [torch.fft.rfft(call) for call in flat]
    by_shift = torch.fft.irfft(spectra[0].conj() * spectra[1], n=flat[0].numel()) / scale
    if a is b:
        by_shift[0] = 0
    largest = by_shift.abs().max()
    shift = int((by_shift.abs() >= 0.9 * largest).nonzero()[0])  # of a table that repeats, its length
    return [shift, by_shift[shift].item()]


def observe(seed: int, stochastic_round: Round) -> Evidence:
    """Round the same numbers often, numbers that BF16 has very often, and a number in the middle of a gap ten times."""
    numbers = _numbers(seed)
    many = numbers.repeat(DRAWS, 1)
    drawn = stochastic_round(many.clone()).double()
    seen: Evidence = {"shape": list(drawn.shape), "shapes": [], "dtypes": [], "untouched": True}
    if drawn.shape != many.shape:
        return seen
    for shape in SHAPES:
        x = torch.randn(shape)
        before = x.clone()
        rounded = stochastic_round(x)
        seen["shapes"].append(list(rounded.shape))
        seen["dtypes"].append(str(rounded.dtype))
        seen["untouched"] &= torch.equal(before, x)
    exact = torch.tensor(EXACT).repeat(EXACT_DRAWS // len(EXACT))
    moved = (stochastic_round(exact.clone()).float() != exact).nonzero()
    middle = torch.full((SIDE, SIDE), 1.0 + 2**-8)
    calls = [(stochastic_round(middle.clone()) > 1).float() for _ in range(10)]
    return seen | {
        "numbers": numbers.double().tolist(),
        "least": drawn.amin(0).tolist(),
        "most": drawn.amax(0).tolist(),
        "mean": drawn.mean(0).tolist(),
        "moved": [len(moved), exact[moved[0]].item() if len(moved) else 0.0],
        "shares": [call.mean().item() for call in calls],
        "equal": all(torch.equal(calls[0], other) for other in calls),
        "within a call": _strongest(calls[0], calls[0]),
        "between calls": _strongest(calls[0], calls[1]),
    }


def _other_shape(seen: Evidence, expected: Evidence) -> str | None:
    yours, wanted = seen["shape"], expected["shape"]
    if yours == wanted:
        return None
    if yours == [*wanted[:-1], 2 * wanted[-1]]:
        return (
            "You return twice as many numbers as `x` has. Noise of dtype int64 makes the sum int64, and its FP32 view "
            "makes two numbers of each: draw the noise with `dtype=torch.int32`."
        )
    return f"For an `x` of shape {wanted} you return one of shape {yours}."


def _table(seen: Evidence, *names: str) -> list[Tensor]:
    return [torch.tensor(seen[name], dtype=torch.float64) for name in names]


class GoesToANeighbor(Check):
    """Each number becomes one of its two BF16 neighbors; a number that BF16 can represent is unchanged."""

    hint = (
        "A BF16 number is an FP32 number whose lower 16 bits are zero.\n"
        "Add a whole number from 0 to 65,535 to the integer view, then clear the lower 16 bits: that is the lower "
        "neighbor, or, after a carry, the upper one.\n"
        "65,536 is one too many: adding it causes a carry even if the lower bits are all zero. `torch.randint` "
        "excludes its upper bound."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if other := _other_shape(seen, expected):
            return other
        (numbers,), (least, most) = _table(expected, "numbers"), _table(seen, "least", "most")
        inner, outer = (side.double() for side in _neighbors(numbers.float()))
        low, high = torch.minimum(inner, outer), torch.maximum(inner, outer)  # BF16 has no number between these two
        for number, a, b, bottom, top in zip(numbers, least, most, low, high, strict=True):
            if a < bottom or b > top:
                return f"{number:.6g} lies between {bottom:.6g} and {top:.6g}; yours range from {a:.6g} to {b:.6g}."
        often, which = seen["moved"]
        if not often:
            return None
        why = " Does the noise have one value too many?" if often < EXACT_DRAWS / 1000 else ""
        return (
            f"{which:g} is a BF16 number and must stay as it is. Of {EXACT_DRAWS:,} such numbers {often:,} moved.{why}"
        )


class IsRightOnAverage(Check):
    """The mean of many roundings is the number itself."""

    hint = (
        "The chance of going up is the distance from the lower neighbor, divided by the gap.\n"
        "The lower 16 bits are that distance, in units of gap / 65,536: add a number drawn uniformly from all 65,536.\n"
        "The integer view needs no exponent, so it works for subnormal numbers, too."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if other := _other_shape(seen, expected):
            return other
        (numbers,), (mean,) = _table(expected, "numbers"), _table(seen, "mean")
        inner, outer = (side.double() for side in _neighbors(numbers.float()))
        between = inner != numbers
        numbers, mean, inner, outer = (values[between] for values in (numbers, mean, inner, outer))
        up, wanted = (mean - inner) / (outer - inner), (numbers - inner) / (outer - inner)
        # In gaps: one rounding is off by at most 0.5 as a standard deviation, the mean of 20,000 by 0.0035.
        off = up - wanted
        if off.abs().max() <= 0.03:
            return None
        outside = (up - up.clamp(0, 1)).abs()
        if not outside.max() <= 0.03:
            at = int((~(outside <= 0.03)).double().argmax())
            return (
                f"On average {numbers[at]:.6g} becomes {mean[at]:.6g}, which does not lie between "
                f"its two neighbors, {inner[at]:.6g} and {outer[at]:.6g}."
            )
        if (up < 0.01).all():
            return "Every number goes toward zero. Is the noise added before the lower 16 bits are cleared?"
        if (up > 0.99).all():
            return "Every number goes away from zero. Is the noise drawn anew, from all 65,536 values?"
        if (up - wanted.round()).abs().max() < 0.01:
            return "Every number always goes to its nearest neighbor. Draw the noise instead of adding half a gap."
        if (up - 0.5).abs().max() < 0.03:
            return (
                "Up and down come equally often, however near the number is to one of its neighbors. Does the noise "
                "have more than two values?"
            )
        if set(seen["shares"]) == {0.0, 1.0}:
            return "Not judged until each element of a call draws a number of its own: see draws_afresh."
        at = int(off.abs().argmax())
        tiny = abs(numbers[at]) < torch.finfo(torch.float32).tiny
        return (
            f"{numbers[at]:.6g} should round away from zero {wanted[at]:.0%} of the time; yours does so {up[at]:.0%}."
            + (" It is subnormal: below 1.2e-38 the gap no longer shrinks with the number." if tiny else "")
        )


class DrawsAfresh(Check):
    """Each element is drawn independently, and afresh in each call."""

    hint = (
        "How many random numbers does one call draw? It takes one for each element.\n"
        "`torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)`; and no seed is set anywhere."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if other := _other_shape(seen, expected):
            return other
        shares = seen["shares"]
        if set(shares) in ({0.0}, {1.0}):
            way = "up" if shares[0] else "down"
            return (
                f"A number in the middle of a gap should go up in half of all cases; in ten calls all went {way}. "
                "Is the noise drawn, and from all 65,536 values?"
            )
        if set(shares) <= {0.0, 1.0}:
            return "All elements of one call go the same way: the call draws one random number for all of them."
        if seen["equal"]:
            return (
                "Ten calls with the same tensor gave the same result ten times. Is a seed set, or noise kept from the "
                "first?"
            )
        often = sum(shares) / len(shares)
        if not abs(often - 0.5) <= 0.05:
            return f"A number in the middle of a gap should go up in half of all cases; yours goes up in {often:.0%}."
        for where, other in (("within a call", ""), ("between calls", " of the next call")):
            shift, correlation = seen[where]
            if not abs(correlation) <= CHANCE:
                return (
                    f"With {SIDE} x {SIDE} elements, element i and element i + {shift:.0f}{other} go the same way in "
                    f"{(1 + correlation) / 2:.0%} of all cases; if they are independent, it is 50%. Do they share what "
                    "was drawn?"
                )
        return None


class ReturnsBf16(Check):
    """The result is a BF16 tensor of the same shape, and the input stays as it was."""

    hint = "After the lower bits are cleared, `.view(torch.float32).bfloat16()` no longer rounds anything."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if other := _other_shape(seen, expected):
            return other
        if not seen["untouched"]:
            return "`x` has changed: work on a copy of its bits."
        if seen["dtypes"] != expected["dtypes"]:
            return f"The result should be in torch.bfloat16; yours is in {seen['dtypes'][0]}."
        for yours, wanted in zip(seen["shapes"], expected["shapes"], strict=True):
            if yours != wanted:
                return f"For an `x` of shape {wanted} you return one of shape {yours}."
        return None


STOCHASTIC = (GoesToANeighbor, IsRightOnAverage, DrawsAfresh, ReturnsBf16)
