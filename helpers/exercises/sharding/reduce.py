"""Check of the reduction: each rank ends with the mean gradient of its own slice, and with nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.cases import cases_on_ranks
from ..probing.distance import relative_distance
from .layout import SHAPES, WORLDS, end_to_end, lay_out, make_parameters

Reduce = Callable[[list[Any], Any], Any]
EXACT = 1e-6


@dataclass(frozen=True)
class _Case:
    """Parameters of `shapes`, reduced `calls` times.

    With `missing`, odd ranks have no gradient of the second; with `none`, no rank has any gradient.
    """

    shapes: str
    missing: bool = False
    calls: int = 1
    none: bool = False


WHOLE = {"21 numbers": _Case("21 numbers"), "24 numbers": _Case("24 numbers")}
CASES = {
    2: WHOLE | {"3 calls": _Case("21 numbers", calls=3)},
    **{n: WHOLE for n in WORLDS if n > 2},
}
MISSING = {
    2: {"gradients missing": _Case("21 numbers", missing=True), "no gradients": _Case("21 numbers", none=True)},
    3: {"gradients missing": _Case("21 numbers", missing=True)},
}


def _gradients(case: _Case, seed: int, rank: int) -> list[Tensor | None]:
    """Return the gradients that `rank` has, None where it has none."""
    drawn = [p.detach() for p in make_parameters(SHAPES[case.shapes], 100 * seed + rank + 1)]
    return [None if case.none or (case.missing and i == 1 and rank % 2) else g for i, g in enumerate(drawn)]


def _joint(case: _Case, seed: int, n: int) -> Tensor:
    """Return the gradients of all ranks, each laid out and padded: (N, N x shard)."""
    rows = []
    for rank in range(n):
        pairs = zip(_gradients(case, seed, rank), make_parameters(SHAPES[case.shapes], 0), strict=True)
        rows.append(end_to_end([torch.zeros_like(p) if g is None else g for g, p in pairs], n))
    return torch.stack(rows)


def _reduce(reduce_gradients: Reduce, seed: int, case: _Case) -> list[Evidence]:
    """One rank: gradients in `.grad`, then the answer; call after call, each time with other gradients."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parameters = make_parameters(SHAPES[case.shapes], seed)
    _, mine = lay_out(parameters, rank, n)
    shard = nn.Parameter(mine)
    numbers = [*(p.detach().clone() for p in parameters), shard.detach().clone()]
    places = [t.data_ptr() for t in (*parameters, shard)]
    everyone, seen = 0, []
    for call in range(case.calls):
        for p, g in zip(parameters, _gradients(case, seed + call, rank), strict=True):
            p.grad = None if g is None else g.clone()
        with Collectives() as said:
            reduce_gradients(list(parameters), shard)
        last = _joint(case, seed + call, n)
        everyone = everyone + last
        grad = shard.grad
        seen.append(
            {
                "grad": None if grad is None else grad.flatten().tolist(),
                "mean": everyone.mean(0).chunk(n)[rank].tolist(),
                "sum": everyone.sum(0).chunk(n)[rank].tolist(),
                "own": everyone[rank].chunk(n)[rank].tolist(),
                "next": everyone.mean(0).chunk(n)[(rank + 1) % n].tolist(),
                "last": last.mean(0).chunk(n)[rank].tolist(),
                "left": [p.grad is not None for p in parameters],
                "kept": all(map(torch.equal, numbers, (*parameters, shard))),
                "moved": [t.data_ptr() for t in (*parameters, shard)] != places,
                "held": 0 if grad is None else grad.untyped_storage().nbytes(),
                "needed": shard.numel() * shard.itemsize,
                "calls": [list(sent) for sent in said.calls],
            }
        )
    return seen


def observe(seed: int, reduce_gradients: Reduce) -> Evidence:
    """Return what each rank saw after each call, by case."""
    return cases_on_ranks(_reduce, CASES, reduce_gradients, seed)


def _each_call(seen: Evidence, expected: Evidence) -> Iterator[tuple[str, int, Evidence, Evidence]]:
    """Yield (where, number of the call, what was seen, what the reference saw)."""
    for case, want in expected.items():
        for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
            for call, (mine, theirs) in enumerate(zip(got, right, strict=True), 1):
                yield f"{case}, rank {rank}" + f", call {call}" * (len(right) > 1), call, mine, theirs


def _wrong(where: str, got: Evidence, right: Evidence) -> str | None:
    """Name what a shard's gradient is instead of the mean of its slice."""
    mistakes = {
        "sum": "is the sum over the ranks; the gradient of the joint batch is their mean",
        "own": "is this rank's own; the other ranks' gradients are not in it",
        "next": "is that of another rank's slice",
    }
    mine = got["grad"]
    if mine is None:
        return f"{where}: shard.grad is None afterwards. Where is the result of the reduce-scatter assigned?"
    if len(mine) != len(right["mean"]):
        return f"{where}: shard.grad has {len(mine)} numbers; it should have {len(right['mean'])}, as the shard does."
    off = relative_distance(mine, right["mean"])
    if off <= EXACT:
        return None
    for name, words in mistakes.items():
        if relative_distance(mine, right[name]) <= EXACT:
            return f"{where}: shard.grad {words}."
    return (
        f"{where}: shard.grad differs from the mean gradient of its slice by {off:.2g} (relative). Is each "
        "gradient in the same place in the vector as its parameter?"
    )


class MeanOfItsSlice(Check):
    """The shard's gradient is the mean over all ranks of the gradients of this rank's slice."""

    hint = (
        "Lay the gradients out as `partition` does the parameters, padded with zeros, and cut that into N parts.\n"
        "reduce_scatter_tensor adds the parts of all ranks and gives rank r the r-th. How does a sum become a mean?"
    )

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        first = ((where, got, right) for where, call, got, right in _each_call(seen, expected) if call == 1)
        return next(filter(None, (_wrong(*call) for call in first)), None)


class MissingGradientsAreZeros(Check):
    """A parameter without a gradient on some rank counts as zeros there, and the others keep their places."""

    hint = "Where p.grad is None, its place in the vector stays zero; still move on by p.numel()."

    @staticmethod
    def probe(seed: int, reduce_gradients: Reduce) -> Evidence:
        # apart from the others, because a rank that expects a gradient raises
        return cases_on_ranks(_reduce, MISSING, reduce_gradients, seed + 1)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        first = ((where, got, right) for where, call, got, right in _each_call(seen, expected) if call == 1)
        return next(filter(None, (_wrong(*call) for call in first)), None)


class AddsToTheShard(Check):
    """A gradient that the shard already has is added to, so that micro-batches accumulate."""

    hint = "Treat shard.grad as backward() treats .grad: set it if it is None, otherwise add to it."

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, call, got, right in _each_call(seen, expected):
            if call > 1 and got["grad"] and relative_distance(got["grad"], right["last"]) <= EXACT:
                return f"{where}: shard.grad holds the gradients of this call only; those of earlier calls are lost."
            wrong = _wrong(where, got, right) if call > 1 else None
            if wrong:
                return wrong
        return None


class LeavesNothingWhole(Check):
    """Afterwards no parameter has a gradient, the shard's keeps only its own memory, and no weight has changed."""

    hint = (
        "p.grad = None frees a gradient as soon as it is copied.\n"
        "A slice of the full vector keeps all of it alive: receive into a tensor of the shard's size.\n"
        "The shard is a weight: receiving into it, or into its data, overwrites it."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, _, got, right in _each_call(seen, expected):
            if any(got["left"]):
                return f"{where}: parameter {got['left'].index(True)} still has its full gradient. Set `.grad` to None."
            if got["held"] > right["needed"]:
                return (
                    f"{where}: shard.grad needs {right['needed']} bytes and keeps {got['held']} alive: "
                    "it is a view of something larger."
                )
            if not got["kept"]:
                return (
                    f"{where}: the call changed the weights of the parameters or of the shard. Into which tensor does "
                    "it receive?"
                )
            if got["moved"]:
                return f"{where}: a parameter or the shard has different memory now. Assign to `.grad` only."
        return None


class SendsOneReduceScatter(Check):
    """A call sends one reduce-scatter of the padded vector, and nothing else."""

    hint = "An all-reduce gives every rank the full sum, for twice the bytes. One reduce-scatter is enough."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, _, got, right in _each_call(seen, expected):
            if got["calls"] != right["calls"]:
                return f"{where}: it sent {_words(got['calls'])}; it should send {_words(right['calls'])}."
        return None


def _words(calls: list[list[Any]]) -> str:
    return ", ".join(f"{name} of {nbytes} B" for name, nbytes in calls) or "nothing"


REDUCE = (MeanOfItsSlice, MissingGradientsAreZeros, AddsToTheShard, LeavesNothingWhole, SendsOneReduceScatter)
