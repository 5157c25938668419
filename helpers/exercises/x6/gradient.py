"""X6, part 2: the gradient of an update, bit for bit the same on one rank and on two. One check of a point."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.on_ranks import on_ranks
from .job import LANES, Stream, small_model
from .states import hash_of

Answer = Callable[..., Any]
EXACT = 1e-9  # relative
MICRO_BATCHES = (2, 3)  # of the first call and the second


def _gradients(gradient: Answer, seed: int) -> Evidence:
    """One rank: two calls, and what each left behind."""
    torch.set_num_threads(1)
    model, rows, begin = small_model(seed), [], []
    model.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    model.register_forward_pre_hook(lambda *_: begin.append(hash_of(torch.get_rng_state())))
    lanes = range(dist.get_rank(), LANES, dist.get_world_size())
    drawn: list[Evidence] = []
    streams = {lane: Stream(seed, lane, drawn) for lane in lanes}
    random = {lane: torch.Generator().manual_seed(seed + lane).get_state() for lane in lanes}
    for p in model.parameters():  # left behind by an earlier step
        p.grad = torch.full_like(p, 7.0)
    calls = []
    for micro_batches in MICRO_BATCHES:
        torch.manual_seed(999)
        gradient(model, streams, random, micro_batches)
        gradients = [p.grad for p in model.parameters()]
        calls.append(
            {
                "gradient": [] if None in gradients else torch.cat([g.flatten() for g in gradients]).tolist(),
                "random": {str(lane): hash_of(random[lane]) for lane in lanes},
                "drawn": {str(lane): [draw["x"] for draw in drawn if draw["lane"] == lane] for lane in lanes},
                "rows": rows[:],
                "begin": sorted(begin),
            }
        )
        rows.clear()
        begin.clear()
        drawn.clear()
    return {"calls": calls}


class SameBitsOnOneRankAndTwo(Check):
    """The gradient is the mean over both lanes' micro-batches, with the same bits on one rank and on two."""

    points = 1
    hint = (
        "Addition in floating point depends on the order: (a + b) + (c + d) is not ((a + b) + c) + d.\n"
        "Let each lane's gradients add up from zero in p.grad, and add the two lanes' sums at the end.\n"
        "torch.set_rng_state(random[lane]) before a lane's micro-batches; torch.get_rng_state() after them."
    )

    @staticmethod
    def probe(seed: int, gradient: Answer) -> Evidence:
        return {str(ranks): on_ranks(_gradients, ranks, gradient, seed) for ranks in (2, 1)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks, want in expected.items():
            for rank, (mine, right) in enumerate(zip(seen[ranks], want, strict=True)):
                for number, (got, ideal) in enumerate(zip(mine["calls"], right["calls"], strict=True), 1):
                    wrong = _wrong_call(got, ideal, seen["2"][0]["calls"][number - 1]["gradient"])
                    if wrong:
                        return f"rank {rank} of {ranks}, call {number}: {wrong}"
        return None


def _wrong_call(got: Evidence, ideal: Evidence, first: list[float]) -> str | None:
    if got["drawn"] != ideal["drawn"]:
        counts = {lane: len(draws) for lane, draws in got["drawn"].items()}
        right = {lane: len(draws) for lane, draws in ideal["drawn"].items()}
        return f"micro-batches drawn by lane: {counts}; {right} is right."
    if got["rows"] != ideal["rows"]:
        return f"the model saw {got['rows']} rows at a time; one micro-batch of 4 is right."
    if got["begin"] != ideal["begin"]:
        return "the model was called in a random state that is not its lane's."
    off = relative_distance(got["gradient"], ideal["gradient"]) if got["gradient"] else 1.0
    if not off <= EXACT:
        sizes = [sum(x * x for x in values) ** 0.5 for values in (got["gradient"], ideal["gradient"])]
        return f"the gradient is {sizes[0] / sizes[1]:.4g} times as long as it should be, and {off:.2g} (relative) off."
    for lane, state in ideal["random"].items():
        if got["random"][lane] != state:
            return f"random[{lane}] is not the random state with which lane {lane} goes on."
    if got["gradient"] != first:
        others = sum(a != b for a, b in zip(got["gradient"], first, strict=True))
        return f"the last bits of {others} of {len(first)} numbers are not those of rank 0 of 2."
    return None


GRADIENT = (SameBitsOnOneRankAndTwo,)
