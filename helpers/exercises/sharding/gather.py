"""Check of the gathering: every rank's shard, in its place in the vector."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.cases import cases_on_ranks
from .layout import SHAPES, WORLDS, end_to_end, lay_out, make_parameters

Gather = Callable[[Any, Any], Any]
APART = {"the shard is a view of flat": False, "the shard has memory of its own": True}
CALLS = 2  # the second with other values, as after a step


def _gather(gather_parameters: Gather, seed: int, apart: bool) -> list[Evidence]:
    """One rank: it changes its shard, then fills its vector; twice."""
    rank, n = dist.get_rank(), dist.get_world_size()
    parameters = make_parameters(SHAPES["21 numbers"], seed)
    flat, mine = lay_out(parameters, rank, n)
    shard = nn.Parameter(mine.clone() if apart else mine)
    shard.grad = torch.full_like(shard, 0.25)
    place, own, seen = flat.data_ptr(), shard.data_ptr(), []
    for call in range(1, CALLS + 1):
        right = end_to_end(make_parameters(SHAPES["21 numbers"], seed + call), n)
        values = right.chunk(n)[rank].clone()
        with torch.no_grad():
            flat.fill_(float("nan"))
            shard.copy_(values)
        with Collectives() as said:
            returned = gather_parameters(flat, shard)
        seen.append(
            {
                "flat": [None if number != number else number for number in flat.detach().tolist()],
                "right": right.tolist(),
                "moved": flat.data_ptr() != place,
                "graph": flat.requires_grad or any(not p.is_leaf for p in parameters),
                "shard": shard.detach().tolist() == values.tolist(),
                "rebound": shard.data_ptr() != own,
                "grad": shard.grad is not None and shard.grad.tolist() == [0.25] * shard.numel(),
                "returned": type(returned).__name__,
                "calls": [list(sent) for sent in said.calls],
            }
        )
        flat = flat.detach()  # a graph that this call left does not affect the next
    return seen


def observe(seed: int, gather_parameters: Gather) -> Evidence:
    """Return what each rank saw after each call, by case."""
    return cases_on_ranks(_gather, dict.fromkeys(WORLDS, APART), gather_parameters, seed)


def _each_call(seen: Evidence, expected: Evidence) -> Iterator[tuple[str, Evidence, Evidence, int]]:
    """Yield (where, what was seen, what the reference saw, number of ranks), call by call."""
    for case, want in expected.items():
        for rank, (got, right) in enumerate(zip(seen[case], want, strict=True)):
            for call, (mine, theirs) in enumerate(zip(got, right, strict=True), 1):
                yield f"{case}, rank {rank}, call {call}", mine, theirs, len(want)


class FillsTheVectorInPlace(Check):
    """The vector holds all ranks' shards, in rank order, in the memory that it had."""

    hint = (
        "all_gather_into_tensor writes the ranks' tensors one after the other into its output.\n"
        "Pass the vector itself as the output: then the parameters, which are views of it, have the values, too."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, got, want, n in _each_call(seen, expected):
            if got["moved"]:
                return f"{where}: flat has different memory now; the parameters are views of the old. Write in place."
            if got["returned"] != "NoneType":
                return f"{where}: it returns a {got['returned']}; fill `flat` and return nothing."
            if got["flat"] == want["right"]:
                continue
            mine, right = (torch.tensor(_numbers(one)).chunk(n) for one in (got["flat"], want["right"]))
            off = [rank for rank, (a, b) in enumerate(zip(mine, right, strict=True)) if not torch.equal(a, b)]
            return f"{where}: the slices of ranks {off} are not those ranks' shards. Where does the all-gather write?"
        return None


def _numbers(numbers: list[float | None]) -> list[float]:
    """Return `numbers` with NaN instead of None (JSON has no NaN)."""
    return [float("nan") if number is None else number for number in numbers]


class LeavesTheShardAlone(Check):
    """The shard, its memory and its gradient do not change, and the vector has no autograd graph."""

    hint = "Send shard.detach() or shard.data: autograd should not record the message."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, got, _, _ in _each_call(seen, expected):
            if not got["shard"]:
                return f"{where}: the shard's values have changed. Which tensor does the all-gather write into?"
            if got["rebound"]:
                return f"{where}: the shard has different memory now. At stage 3 its values must outlive those of flat."
            if not got["grad"]:
                return f"{where}: the shard's gradient has changed; leave clearing it to the optimizer."
            if got["graph"]:
                return (
                    f"{where}: flat requires a gradient now: autograd recorded how the shard was written into it. "
                    "Pass the shard without its graph."
                )
        return None


class SendsOneAllGather(Check):
    """A call sends one all-gather of the vector and nothing else."""

    hint = "One all-gather is enough. A broadcast per rank, or a sum of vectors with zeros, sends more."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, got, right, _ in _each_call(seen, expected):
            if got["calls"] != right["calls"]:
                return f"{where}: it sent {_words(got['calls'])}; it should send {_words(right['calls'])}."
        return None


def _words(calls: list[list[Any]]) -> str:
    return ", ".join(f"{name} of {nbytes} B" for name, nbytes in calls) or "nothing"


GATHER = (FillsTheVectorInPlace, LeavesTheShardAlone, SendsOneAllGather)
