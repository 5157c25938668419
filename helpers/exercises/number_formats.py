"""Practice checks of number formats: gaps between numbers, weights that stand still, stochastic rounding."""

import random
from collections.abc import Callable

import torch
from torch import Tensor

from ..formats.float_format import FORMATS
from .base import Check, Evidence, Part


def gap_above(value: float, name: str) -> float:
    """Return the gap between `value`, a positive number of the format, and the next larger one: from the bits."""
    form = FORMATS[name]
    pattern = form.encode(value)
    return form.decode(pattern + 1) - form.decode(pattern)


class KnowsTheGap(Check):
    """The distance from a number to the next larger one, in any format, subnormal numbers included."""

    hint = (
        "Between 2^e and 2^(e+1) a format with f fraction bits has 2^f numbers, evenly spaced. Below the smallest "
        "normal number the spacing stays what it is there. math.frexp gives the exponent."
    )

    @staticmethod
    def probe(seed: int, gap: Callable[[float, int, int], float]) -> Evidence:
        rng = random.Random(seed)
        seen = {}
        for name, form in FORMATS.items():
            smallest = 2.0 ** (1 - form.bias)
            values = [1.0, 2.0, 1.5, rng.uniform(3, 100), smallest, smallest / 2, rng.uniform(0.01, 0.9)]
            for value in values:
                stored = form.decode(form.encode(value))
                seen[f"{stored:.9g} in {name}"] = float(gap(stored, form.exponent_bits, form.fraction_bits))
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            value, _, name = case.partition(" in ")
            true = gap_above(float(value), name)
            if not abs(seen[case] - true) <= 1e-9 * true:
                return (
                    f"Next to {case} the gap is {true:.4g}; you say {seen[case]:.4g} ({seen[case] / true:.3g} times)."
                )
        return None


class SeesWhoStandsStill(Check):
    """The share of weights that an update changes, when the weights are stored in 16 bits."""

    hint = "Subtract in FP32, round the result to the dtype of the weights, and compare with before."

    @staticmethod
    def probe(seed: int, share_that_moves: Callable[[Tensor, Tensor], float]) -> Evidence:
        generator = torch.Generator().manual_seed(seed)
        seen = {}
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            weight = (torch.randn(4000, generator=generator) * 0.05).to(dtype)
            for size in (1e-2, 1e-4, 3e-5, 1e-6):
                update = torch.randn(4000, generator=generator).abs() * size * weight.float().sign()  # towards zero
                kept = weight.clone()
                share = float(share_that_moves(weight, update))
                seen[f"{str(dtype).removeprefix('torch.')}, updates of {size:g}"] = [share, torch.equal(kept, weight)]
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, (want, _) in expected.items():
            share, untouched = seen[case]
            if not untouched:
                return f"{case}: the weights you were given have changed; work on a copy."
            if not abs(share - want) <= 0.002:
                return f"{case}: you say {share:.1%} move; {want:.1%} do."
        return None


class RoundsWithoutBias(Check):
    """Each number goes to one of its two BF16 neighbours, and on average it stays where it was."""

    hint = (
        "A BF16 number is an FP32 number whose lower 16 bits are zero. Add a random number of 16 bits to the integer "
        "view, then clear the lower 16 bits."
    )

    @staticmethod
    def probe(seed: int, stochastic_round: Callable[[Tensor], Tensor]) -> Evidence:
        generator = torch.Generator().manual_seed(seed)
        seen: Evidence = {}
        mine = torch.tensor([1.001, -3.7])
        stochastic_round(mine)
        seen["untouched"] = torch.equal(mine, torch.tensor([1.001, -3.7]))
        numbers = torch.cat(
            [torch.randn(50, generator=generator), torch.tensor([1.001, -1.001, 3e-5, -700.3, 0.0, 2.0])]
        )
        rows = numbers.repeat(20_000, 1)  # many throws of the dice for each number
        out = stochastic_round(rows.clone())
        seen["dtype"] = str(out.dtype)
        seen["shape"] = list(out.shape) == list(rows.shape)
        out = out.float()
        seen["numbers"] = numbers.tolist()
        for name, column in (("least", out.amin(0)), ("most", out.amax(0)), ("mean", out.mean(0))):
            seen[name] = column.tolist()
        again = stochastic_round(rows.clone()).float()
        seen["random"] = not torch.equal(out, again)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["dtype"] != "torch.bfloat16" or not seen["shape"]:
            return f"The result should be a BF16 tensor of the same shape; its dtype is {seen['dtype']}."
        if not seen["untouched"]:
            return "The tensor you were given has changed: work on a copy of its bits."
        numbers = torch.tensor(expected["numbers"])
        least, most, mean = (torch.tensor(seen[name]) for name in ("least", "most", "mean"))
        down = (numbers.view(torch.int32) & ~0xFFFF).view(torch.float32)  # towards zero
        up = ((numbers.view(torch.int32) & ~0xFFFF) + 0x10000).view(torch.float32)
        low, high = torch.minimum(down, up), torch.maximum(down, up)  # BF16 has no number between these two
        if not ((low <= least) & (most <= high)).all():
            return "Some numbers did not go to one of their two BF16 neighbours."
        exact = down == numbers
        if not ((least == numbers) & (most == numbers))[exact].all():
            return "Numbers that BF16 knows exactly must stay as they are."
        if not seen["random"]:
            return "Two calls gave the same result: not random, or seeded inside."
        # In gaps between neighbours: one throw is off by at most 0.5, the mean of 20,000 by at most 0.02.
        bias = ((mean - numbers) / (up - down))[~exact].abs().max().item()
        if not bias <= 0.03:
            return f"The mean of 20,000 roundings is off by {bias:.2f} of the gap: the chances are wrong."
        return None


PARTS = (
    Part("number_formats.gap", ("gap",), (KnowsTheGap,)),
    Part("number_formats.moves", ("share_that_moves",), (SeesWhoStandsStill,)),
    Part("number_formats.stochastic", ("stochastic_round",), (RoundsWithoutBias,)),
)
