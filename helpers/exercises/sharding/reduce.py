"""Check of the reduction: each rank ends with the mean gradient of its own slice, and with nothing else."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.on_ranks import on_ranks
from .layout import SHAPES, WORLDS, end_to_end, lay_out, make_parameters

Reduce = Callable[[list[Any], Any], Any]
LEFT_BEFORE = 0.5  # in each entry of the shard's gradient, where that is looked at
EXACT = 1e-6


def _gradients(shapes: str, seed: int, rank: int, missing: bool) -> list[Tensor | None]:
    """Return the gradients that `rank` has: with `missing`, odd ranks have none of the second parameter."""
    drawn = [p.detach() for p in make_parameters(SHAPES[shapes], 100 * seed + rank + 1)]
    return [None if missing and i == 1 and rank % 2 else g for i, g in enumerate(drawn)]


def _joint(shapes: str, seed: int, missing: bool, n: int) -> Tensor:
    """Return the gradients of all ranks, each laid out and padded: (N, N x shard)."""
    rows = []
    for rank in range(n):
        pairs = zip(_gradients(shapes, seed, rank, missing), make_parameters(SHAPES[shapes], 0), strict=True)
        rows.append(end_to_end([torch.zeros_like(p) if g is None else g for g, p in pairs], n))
    return torch.stack(rows)


def _work(reduce_gradients: Reduce, seed: int, shapes: str, missing: bool, times: int) -> Evidence:
    """One rank: gradients in `.grad`, then the answer; as often as `times` says, each time with other gradients."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parameters = make_parameters(SHAPES[shapes], seed)
    _, mine = lay_out(parameters, rank, n)
    shard = nn.Parameter(mine)
    for call in range(times):
        for p, g in zip(parameters, _gradients(shapes, seed + call, rank, missing), strict=True):
            p.grad = None if g is None else g.clone()
        with Collectives() as said:
            reduce_gradients(list(parameters), shard)
    each = [_joint(shapes, seed + call, missing, n) for call in range(times)]
    everyone, last = sum(each), each[-1]
    grad = shard.grad
    return {
        "grad": None if grad is None else grad.flatten().tolist(),
        "mean": everyone.mean(0).chunk(n)[rank].tolist(),
        "sum": everyone.sum(0).chunk(n)[rank].tolist(),
        "own": everyone[rank].chunk(n)[rank].tolist(),
        "next": everyone.mean(0).chunk(n)[(rank + 1) % n].tolist(),
        "last": last.mean(0).chunk(n)[rank].tolist(),
        "left": [p.grad is not None for p in parameters],
        "held": 0 if grad is None else grad.untyped_storage().nbytes(),
        "needed": shard.numel() * shard.itemsize,
        "calls": [list(call) for call in said.calls],
    }


def _on(answer: Reduce, seed: int, cases: list[tuple[str, int]], missing: bool = False, times: int = 1) -> Evidence:
    return {f"{shapes}, {n} ranks": on_ranks(_work, n, answer, seed, shapes, missing, times) for shapes, n in cases}


def _wrong(seen: Evidence, expected: Evidence) -> str | None:
    """Name what a shard's gradient is instead of the mean of its slice."""
    mistakes = {
        "sum": "is the sum over the ranks; the gradient of the joint batch is their mean",
        "own": "is this rank's own; the other ranks' is not in it",
        "next": "is that of another rank's slice",
    }
    for case, want in expected.items():
        for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
            where, mine = f"{case}, rank {rank}", got["grad"]
            if mine is None:
                return f"{where}: shard.grad is None afterwards."
            if len(mine) != len(right["mean"]):
                return f"{where}: shard.grad has {len(mine)} entries; the shard has {len(right['mean'])}."
            if relative_distance(mine, right["mean"]) <= EXACT:
                continue
            for name, words in mistakes.items():
                if relative_distance(mine, right[name]) <= EXACT:
                    return f"{where}: shard.grad {words}."
            off = relative_distance(mine, right["mean"])
            return f"{where}: shard.grad is at a relative distance of {off:.2g} from the mean gradient of its slice."
    return None


class MeanOfItsSlice(Check):
    """The shard's gradient is the mean over all ranks of the gradients of this rank's slice."""

    hint = (
        "Lay the gradients out as `partition` does the parameters, zeros as padding, and cut the vector into N parts.\n"
        "reduce_scatter adds the parts of all ranks up and gives rank r the r-th. How does a sum become a mean?"
    )

    @staticmethod
    def probe(seed: int, reduce_gradients: Reduce) -> Evidence:
        cases = [(shapes, n) for n in WORLDS for shapes in ("21 numbers", "24 numbers")]
        return _on(reduce_gradients, seed, cases)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class MissingGradientsAreZeros(Check):
    """A parameter without a gradient on some rank counts as zeros there, and the others keep their places."""

    hint = "Where p.grad is None, the place in the vector stays zero: move on by p.numel() all the same."

    @staticmethod
    def probe(seed: int, reduce_gradients: Reduce) -> Evidence:
        return _on(reduce_gradients, seed + 1, [("21 numbers", 2), ("21 numbers", 3)], missing=True)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong(seen, expected)


class AddsToTheShard(Check):
    """A gradient that the shard has already is added to, so that micro-batches add up."""

    hint = "As backward() does with .grad: where there is none yet, set it; where there is one, add."

    @staticmethod
    def probe(seed: int, reduce_gradients: Reduce) -> Evidence:
        return _on(reduce_gradients, seed + 2, [("21 numbers", 2)], times=2)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                if got["grad"] and relative_distance(got["grad"], right["last"]) <= EXACT:
                    return f"{case}, rank {rank}: of two calls, only the second is in shard.grad; the first is gone."
        return _wrong(seen, expected)


class LeavesNothingWhole(Check):
    """Afterwards no parameter has a gradient, and the shard's gradient keeps no memory but its own."""

    hint = (
        "p.grad = None frees a gradient as soon as it is copied.\n"
        "A slice of the whole vector keeps the whole vector alive: receive into a tensor of the shard's size."
    )

    @staticmethod
    def probe(seed: int, reduce_gradients: Reduce) -> Evidence:
        return _on(reduce_gradients, seed + 3, [("21 numbers", 3)])

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                if any(got["left"]):
                    return f"{case}, rank {rank}: parameter {got['left'].index(True)} still has its whole gradient."
                if got["held"] > right["needed"]:
                    return (
                        f"{case}, rank {rank}: shard.grad needs {right['needed']} bytes and keeps {got['held']} alive: "
                        "it is a view of something larger."
                    )
        return None


class SendsOneReduceScatter(Check):
    """A call sends one reduce-scatter of the padded vector, and nothing else."""

    hint = "An all-reduce gives every rank the whole sum, for twice the bytes. One reduce_scatter is enough."

    @staticmethod
    def probe(seed: int, reduce_gradients: Reduce) -> Evidence:
        return _on(reduce_gradients, seed + 4, [("21 numbers", 2)])

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
                if got["calls"] != right["calls"]:
                    return f"{case}, rank {rank}: sent {_words(got['calls'])}; {_words(right['calls'])} is right."
        return None


def _words(calls: list[list[Any]]) -> str:
    return ", ".join(f"{name} of {nbytes} B" for name, nbytes in calls) or "nothing"


REDUCE = (MeanOfItsSlice, MissingGradientsAreZeros, AddsToTheShard, LeavesNothingWhole, SendsOneReduceScatter)
