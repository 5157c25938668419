"""Check of a repaired function: the numbers of the one whose graph broke, in one graph."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...core.device import pick_device
from ..base import Check, Evidence
from ..probing.plain import plain

Repaired = Callable[[Tensor], Tensor]
SAME = 1e-5  # of the largest number, which is 1


def _cases(seed: int) -> Iterator[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(5, 7, generator=generator)
    half = 1 + torch.rand(6, generator=generator)
    for case, x in (
        ("a positive mean", spread - spread.min()),
        ("a negative mean", spread - spread.max()),
        ("a mean of 0", torch.cat([half, -half])),
        ("the largest magnitude below zero", torch.cat([half, -half.max()[None] - 1])),
        ("a transposed tensor", spread.t() - spread.min()),
        # rows and columns have means of both signs
        ("a mean a little above 0", spread - spread.mean() + 0.01),
        ("a mean a little below 0", spread - spread.mean() - 0.01),
    ):
        yield case, x.to(pick_device())


class GivesTheSameNumbers(Check):
    """The result is that of `normalize`: 2x, minus 1 if the mean of 2x is above 0, divided by its largest magnitude."""

    hint = (
        "Which of the two branches is right depends on a number. Can both be computed?\n"
        "`torch.where(condition, a, b)` takes `a` where the condition holds, and the condition may be one number."
    )

    @staticmethod
    def probe(seed: int, repaired: Repaired) -> Evidence:
        seen: Evidence = {}
        for case, x in _cases(seed):
            given = x.clone()
            out = plain(repaired(x)).detach()
            seen[case] = {"numbers": out.cpu().double().tolist(), "untouched": torch.equal(x, given)}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            mine, right = (torch.tensor(each["numbers"]) for each in (seen[case], want))
            if not seen[case]["untouched"]:
                return f"{case}: x has changed; work on a copy."
            if mine.shape != right.shape:
                return f"{case}: the shape should be {tuple(right.shape)}; it is {tuple(mine.shape)}."
            if not mine.isfinite().all():
                return (
                    f"{case}: there are infinities or NaNs. "
                    "Is the divisor the largest magnitude? The largest number can be 0."
                )
            far = (mine - right).abs().max().item()
            if not far <= SAME:
                return (
                    f"{case}: the numbers are off by up to {far:.2g}. Is the condition about the mean of the whole "
                    "tensor, and is the divisor the largest magnitude?"
                )
        return None


class BecomesOneGraph(Check):
    """TorchDynamo records it as one graph, without a break."""

    hint = (
        "Where does Python read a value of a tensor, or do something that is not a tensor operation?\n"
        "`if` on a tensor and `.item()` need the number now. A tensor of one number can divide just as well."
    )

    @staticmethod
    def probe(seed: int, repaired: Repaired) -> Evidence:
        (_, x), *_ = _cases(seed)
        torch._dynamo.reset()
        told = torch._dynamo.explain(repaired)(x)
        torch._dynamo.reset()
        lines = [reason.user_stack[-1].line or "" for reason in told.break_reasons if reason.user_stack]
        return {"graphs": told.graph_count, "lines": [line.strip() for line in lines]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["graphs"] == expected["graphs"] and not seen["lines"]:
            return None
        named = seen["lines"] and seen["lines"][0]
        where = f" It breaks at: {seen['lines'][0]}" if named else " Which line needs the value of a tensor?"
        graphs = f"{seen['graphs']} graph was" if seen["graphs"] == 1 else f"{seen['graphs']} graphs were"
        breaks = f"{len(seen['lines'])} break" + "s" * (len(seen["lines"]) != 1)
        return f"{graphs} recorded, with {breaks}.{where}"


REPAIRED = (GivesTheSameNumbers, BecomesOneGraph)
