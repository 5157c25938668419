"""Checks of stochastic rounding: to a neighbour, right on average, every throw on its own, and the input left alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..base import Check, Evidence

Round = Callable[[Tensor], Tensor]
THROWS = 20_000  # of the dice, for each number


def _numbers(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.tensor([1.001, -1.001, 3e-5, -700.3, 0.0, 2.0, -0.375])
    return torch.cat([torch.randn(50, generator=generator), edges])


def _neighbours(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the BF16 neighbours of `numbers`: the one nearer to zero, and the other."""
    cut = numbers.view(torch.int32) & ~0xFFFF
    return cut.view(torch.float32), (cut + 0x10000).view(torch.float32)


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


class GoesToANeighbour(Check):
    """Each number becomes one of its two BF16 neighbours; one that BF16 has stays as it is."""

    hint = (
        "A BF16 number is an FP32 number whose lower 16 bits are zero.\n"
        "Add a whole number from 0 to 65,535 to the integer view, then clear the lower 16 bits: that is the lower "
        "neighbour, or, after a carry, the upper one."
    )

    @staticmethod
    def probe(seed: int, stochastic_round: Round) -> Evidence:
        numbers = _numbers(seed)
        out = stochastic_round(numbers.repeat(2000, 1)).float()
        return {
            "shape": list(out.shape),
            "numbers": numbers.tolist(),
            "least": out.amin(0).tolist(),
            "most": out.amax(0).tolist(),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if other := _other_shape(seen, expected):
            return other
        numbers, least, most = (torch.tensor(values) for values in (expected["numbers"], seen["least"], seen["most"]))
        inner, outer = _neighbours(numbers)
        exact = inner == numbers
        if not ((least == numbers) & (most == numbers))[exact].all():
            return "Numbers that BF16 has, such as 2 and 0, must stay as they are."
        low, high = torch.minimum(inner, outer), torch.maximum(inner, outer)  # BF16 has no number between these two
        for number, a, b, bottom, top in zip(numbers, least, most, low, high, strict=True):
            if a < bottom or b > top:
                return f"{number:.6g} lies between {bottom:.6g} and {top:.6g}; yours reach from {a:.6g} to {b:.6g}."
        return None


class IsRightOnAverage(Check):
    """The mean of many roundings is the number itself."""

    hint = (
        "The chance of going up is the distance from the lower neighbour, divided by the gap.\n"
        "The lower 16 bits are that distance, in units of gap / 65,536: add a number drawn evenly from all 65,536."
    )

    @staticmethod
    def probe(seed: int, stochastic_round: Round) -> Evidence:
        numbers = _numbers(seed)
        out = stochastic_round(numbers.repeat(THROWS, 1)).double()
        return {"shape": list(out.shape), "numbers": numbers.tolist(), "mean": out.mean(0).tolist()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if other := _other_shape(seen, expected):
            return other
        numbers, mean = (torch.tensor(values, dtype=torch.float64) for values in (expected["numbers"], seen["mean"]))
        inner, outer = _neighbours(numbers.float())
        between = inner != numbers.float()
        # In gaps: one throw is off by at most 0.5 as a standard deviation, the mean of 20,000 by 0.0035.
        off = ((mean - numbers) / (outer - inner).double())[between]
        if off.abs().max() <= 0.03:
            return None
        up = ((mean - inner) / (outer - inner).double())[between]
        wanted = ((numbers - inner) / (outer - inner).double())[between]
        outside = (up - up.clamp(0, 1)).abs()
        if not outside.max() <= 0.03:
            at = int(outside.argmax())
            return (
                f"On average {numbers[between][at]:.6g} becomes {mean[between][at]:.6g}, which does not lie between "
                f"its two neighbours, {inner[between][at]:.6g} and {outer[between][at]:.6g}."
            )
        if (up < 0.01).all():
            return "Every number goes towards zero: nothing is thrown."
        if (up > 0.99).all():
            return "Every number goes away from zero: nothing is thrown."
        if (up - wanted.round()).abs().max() < 0.01:
            return "Every number goes to its nearest neighbour, always: nothing is thrown."
        if (up - 0.5).abs().max() < 0.03:
            return "Up and down come equally often, however near the number is to one of its neighbours."
        at = int(off.abs().argmax())
        return (
            f"{numbers[between][at]:.6g} should go away from zero in {wanted[at]:.0%} of all cases; yours goes in "
            f"{up[at]:.0%}."
        )


class ThrowsAfresh(Check):
    """Each element is drawn independently, and afresh in each call."""

    hint = (
        "How many random numbers does one call draw? It takes one for each element.\n"
        "`torch.randint(0, 2**16, x.shape, dtype=torch.int32, device=x.device)`; and no seed is set anywhere."
    )

    @staticmethod
    def probe(seed: int, stochastic_round: Round) -> Evidence:
        x = torch.full((200, 300), 1.0 + 2**-8)  # in the middle of a gap
        up, *others = calls = [(stochastic_round(x) > 1).double() for _ in range(10)]
        return {
            "shape": list(up.shape),
            "shares": [call.mean().item() for call in calls],
            "equal": all(torch.equal(up, other) for other in others),
            "rows": up.mean(1).var().item(),
            "columns": up.mean(0).var().item(),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if other := _other_shape(seen, expected):
            return other
        shares = seen["shares"]
        if set(shares) in ({0.0}, {1.0}):
            way = "up" if shares[0] else "down"
            return (
                f"A number in the middle of a gap should go up in half of all cases; in ten calls all went {way}. "
                "Nothing is drawn, or from the wrong range."
            )
        if seen["equal"]:
            return "Ten calls with the same tensor gave ten times the same result."
        often = sum(shares) / len(shares)
        if not set(shares) <= {0.0, 1.0} and not abs(often - 0.5) <= 0.05:
            return f"A number in the middle of a gap should go up in half of all cases; yours goes up in {often:.0%}."
        ratios = seen["rows"] * 4 * 300, seen["columns"] * 4 * 200  # the mean of n independent coins varies by 1/4n
        if not all(1 / 3 < ratio < 3 for ratio in ratios):
            return "Elements of one call go up and down together: some of them share what was drawn."
        return None


class ReturnsBf16(Check):
    """The result is a BF16 tensor of the same shape, and the input stays as it was."""

    hint = "After the lower bits are cleared, `.view(torch.float32).bfloat16()` rounds nothing any more."

    @staticmethod
    def probe(seed: int, stochastic_round: Round) -> Evidence:
        generator = torch.Generator().manual_seed(seed)
        seen: Evidence = {"shapes": [], "dtypes": [], "untouched": True}
        for shape in ((), (3, 4), (2, 1, 5)):
            x = torch.randn(shape, generator=generator)
            before = x.clone()
            rounded = stochastic_round(x)
            seen["shapes"].append(list(rounded.shape))
            seen["dtypes"].append(str(rounded.dtype))
            seen["untouched"] &= torch.equal(before, x)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["untouched"]:
            return "The tensor you were given has changed: work on a copy of its bits."
        if seen["dtypes"] != expected["dtypes"]:
            return f"The result should be in torch.bfloat16; yours is in {seen['dtypes'][0]}."
        if seen["shapes"] != expected["shapes"]:
            return f"For shapes {expected['shapes']} you return {seen['shapes']}."
        return None


STOCHASTIC = (GoesToANeighbour, IsRightOnAverage, ThrowsAfresh, ReturnsBf16)
