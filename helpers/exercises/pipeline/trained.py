"""Run an answer's lists on real ranks and check the gradients."""

from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ...pipelines.bench import set_up
from ...pipelines.gradients import gradient_of
from ...pipelines.pipeline import Pipeline
from ...pipelines.placement import in_a_row
from ...pipelines.simulate import Stuck
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.on_ranks import on_ranks
from .lists import Case, Make, actions_of, lists_of
from .order import taken_for_another


def _work(line: Pipeline) -> tuple[float, list[int], list[list[float]]]:
    """One rank: return its loss, and for each of its stages the number of missing gradients and sums of the others."""
    rank = dist.get_rank()
    engine, x, y = set_up(line)
    loss = engine.step(line.schedules[rank], x, y)
    missing = [sum(p.grad is None for p in module.parameters()) for module in engine.chunks]
    return loss, missing, [_short(gradient_of(module)) for module in engine.chunks]


def _short(gradient: torch.Tensor) -> list[float]:
    """Return eight sums of the elements of a gradient with random signs: numbers that change with it."""
    generator = torch.Generator().manual_seed(2)
    signs = torch.randint(0, 2, (8, len(gradient)), generator=generator).mul(2).sub(1).to(gradient.dtype)
    return (signs @ gradient.nan_to_num(0.0)).tolist()


def _seen(make: Make, case: Case) -> dict[str, Any]:
    """Run the answer's lists for one pipeline, if they can be run."""
    lists = lists_of(make, case)
    line = Pipeline(lists, in_a_row(case.ranks, case.chunks), case.m)
    try:
        line.simulated()
    except (Stuck, ValueError, IndexError):  # the ranks would hang or raise
        return {"ran": False}
    losses, missing, numbers = zip(*on_ranks(_work, case.ranks, line), strict=True)
    return {
        "ran": True,
        "of": case.numbers,
        "lists": lists,
        "loss": sum(losses),
        "missing": list(missing),
        "ranks": list(numbers),
    }


class TrainsAsOneProcess(Check):
    """On real ranks, the lists give the loss and the gradients of one process, even if messages carry no tags."""

    hint = "The engine adds up what your actions compute. A wrong gradient means one action too few or too many."
    cases: ClassVar[list[Case]]

    @classmethod
    def probe(cls, seed: int, make: Make) -> Evidence:
        return {str(case): _seen(make, case) for case in cls.cases}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if not got["ran"]:
                return f"{case}: these lists cannot run on ranks; the checks above show why."
            if not abs(got["loss"] - want["loss"]) <= 1e-4 * abs(want["loss"]):
                return (
                    f"{case}: the loss is {got['loss']:.4f}; one process gets {want['loss']:.4f}. Which F is missing "
                    "or repeated?"
                )
            for rank, counts in enumerate(got["missing"]):
                if any(counts):
                    return (
                        f"{case}: on rank {rank}, {sum(counts)} parameters have no gradient. Which action computes it?"
                    )
            for rank, (mine, right) in enumerate(zip(got["ranks"], want["ranks"], strict=True)):
                for chunk, (numbers, goal) in enumerate(zip(mine, right, strict=True)):
                    off = relative_distance(numbers, goal)
                    if not off <= 1e-3:
                        return (
                            f"{case}: the gradient of rank {rank}, chunk {chunk}, is off by {off:.1e} of its norm. "
                            "Which backward pass is missing or repeated?"
                        )
            if mistaken := taken_for_another(Case(*want["of"]), actions_of(got)):
                return f"{case}: {mistaken}"
        return None
