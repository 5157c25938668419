"""Practice check of tensor parallel: a row-parallel linear layer with right gradients."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..core.device import rank_device
from ..ranks.collectives import Collectives
from .base import Check, Evidence, Part
from .probing.distance import relative_distance
from .probing.on_ranks import on_ranks

CASES = {"2 ranks": (2, 12), "3 ranks": (3, 12), "1 rank": (1, 4)}
NAMES = ("output", "gradient of x", "gradient of the weight", "gradient of the bias")


def _work(row_parallel: Callable[..., Any], seed: int, features: int) -> Evidence:
    """One rank: its part of x (5, 2, in) and of the weight (7, in); the loss is the same on every rank."""
    rank, ranks, device = dist.get_rank(), dist.get_world_size(), rank_device()
    torch.manual_seed(seed)
    x, weight, bias, goal = (
        torch.randn(shape, dtype=torch.float64) for shape in ((5, 2, features), (7, features), (7,), (5, 2, 7))
    )
    part = slice(rank * features // ranks, (rank + 1) * features // ranks)
    mine = [t.to(device).clone().requires_grad_() for t in (x[..., part], weight[:, part], bias)]
    before = [t.detach().clone() for t in mine]
    with Collectives() as forward:
        y = row_parallel(*(t.view_as(t) for t in mine))  # not leaves, as in a model
    with Collectives() as backward, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        (y * goal.to(device)).sum().backward()
    return {
        "numbers": [None if t is None else t.flatten().tolist() for t in (y.detach(), *(t.grad for t in mine))],
        "behind autograd": any("autograd kernel was not registered" in str(one.message) for one in warned),
        "changed": any(not torch.equal(t.detach(), old) for t, old in zip(mine, before, strict=True)),
        "forward": [list(call) for call in forward.calls],
        "backward": [list(call) for call in backward.calls],
    }


def _words(calls: list[list[Any]]) -> str:
    return ", ".join(f"{name} of {n:,} B" for name, n in calls) or "nothing"


class SumsWhereThePathsMeet(Check):
    """Output and gradients are those of one process, for one all-reduce forward and none backward."""

    hint = (
        "A torch.autograd.Function whose forward all-reduces a copy of the partial sums and whose backward hands the "
        "gradient on. Add the bias after the sum: before it, it is added once for each rank."
    )

    @staticmethod
    def probe(seed: int, row_parallel: Callable[..., Any]) -> Evidence:
        return {case: on_ranks(_work, ranks, row_parallel, seed, n) for case, (ranks, n) in CASES.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                for name, numbers, right_numbers in zip(NAMES, got["numbers"], right["numbers"], strict=True):
                    if numbers is None:
                        return f"{case}, rank {rank}: there is no {name}."
                    off = relative_distance(numbers, right_numbers)
                    if not off <= 1e-9:
                        times = torch.tensor(numbers).norm() / torch.tensor(right_numbers).norm()
                        return f"{case}, rank {rank}: {name} {times:.3g} times as long, at a distance of {off:.2g}."
                if got["behind autograd"]:
                    return f"{case}, rank {rank}: a collective changed a tensor behind autograd's back; PyTorch warned."
                if got["changed"]:
                    return f"{case}, rank {rank}: x, weight or bias were changed."
                for when in ("forward", "backward"):
                    if got[when] != right[when]:
                        sent, allowed = (_words(calls) for calls in (got[when], right[when]))
                        return f"{case}, rank {rank}: the {when} pass sends {sent}; {allowed} is right."
        return None


PARTS = (Part("tensor_parallel.row", ("row_parallel",), (SumsWhereThePathsMeet,)),)
