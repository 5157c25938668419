"""Check of the gathering: every rank's shard, in its place in the vector."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from .layout import SHAPES, WORLDS, end_to_end, lay_out, make_parameters

Gather = Callable[[Any, Any], Any]
CASES = ("the shard is a view of flat", "the shard has memory of its own")


def _work(gather_parameters: Gather, seed: int) -> Evidence:
    """One rank: each has stepped on its shard; then all vectors are filled."""
    rank, n = dist.get_rank(), dist.get_world_size()
    seen: Evidence = {}
    for case in CASES:
        parameters = make_parameters(SHAPES["21 numbers"], seed)
        flat, mine = lay_out(parameters, rank, n)
        right = end_to_end(make_parameters(SHAPES["21 numbers"], seed + 1), n)
        values = right.chunk(n)[rank].clone()
        apart = case == CASES[1]
        shard = nn.Parameter(values.clone() if apart else mine)
        with torch.no_grad():
            flat.fill_(float("nan"))
            shard.copy_(values)
        shard.grad = torch.full_like(shard, 0.25)
        place = flat.data_ptr()
        with Collectives() as said:
            returned = gather_parameters(flat, shard)
        total = sum(p.numel() for p in parameters)
        seen[case] = {
            "flat": [None if number != number else number for number in flat.detach().tolist()],
            "parameters": [float(x) for x in torch.cat([p.detach().flatten() for p in parameters]).nan_to_num()],
            "right": right.tolist(),
            "numbers": total,
            "moved": flat.data_ptr() != place,
            "graph": flat.requires_grad or any(not p.is_leaf for p in parameters),
            "shard": shard.detach().tolist() == values.tolist(),
            "grad": shard.grad is not None and shard.grad.tolist() == [0.25] * shard.numel(),
            "returned": returned is not None,
            "calls": [list(call) for call in said.calls],
        }
    return seen


def _on(gather_parameters: Gather, seed: int, worlds: tuple[int, ...]) -> Evidence:
    return {f"{n} ranks": on_ranks(_work, n, gather_parameters, seed) for n in worlds}


class FillsTheVectorInPlace(Check):
    """The vector holds all ranks' shards, in the order of the ranks, in the memory that it had."""

    hint = (
        "all_gather writes what rank r sends into the r-th tensor of a list.\n"
        "flat.chunk(N) are N views of the vector: what is received there is in the vector, and in the parameters."
    )

    @staticmethod
    def probe(seed: int, gather_parameters: Gather) -> Evidence:
        return _on(gather_parameters, seed, WORLDS)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for n, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[n], want, strict=True)):
                for case in CASES:
                    where, mine, wanted = f"{n}, rank {rank}, {case}", got[case], right[case]
                    if mine["moved"]:
                        return f"{where}: flat has other memory than before; the parameters are views of the old one."
                    if mine["flat"] == wanted["right"]:
                        continue
                    size = len(wanted["right"]) // len(want)
                    off = [
                        r
                        for r in range(len(want))
                        if mine["flat"][r * size :][:size] != wanted["right"][r * size :][:size]
                    ]
                    return f"{where}: the slices of rank {off} are not what those ranks have in their shards."
        return None


class LeavesTheShardAlone(Check):
    """The shard and its gradient stay as they are, and no autograd graph hangs on the vector."""

    hint = "Send shard.detach(), or shard.data: the message is no step of the forward pass."

    @staticmethod
    def probe(seed: int, gather_parameters: Gather) -> Evidence:
        return _on(gather_parameters, seed + 1, (2,))

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for n in expected:
            for rank, got in enumerate(seen[n]):
                for case in CASES:
                    where, mine = f"{n}, rank {rank}, {case}", got[case]
                    if not mine["shard"]:
                        return f"{where}: the shard has other numbers than before."
                    if not mine["grad"]:
                        return f"{where}: the shard's gradient was changed; clearing it is the optimizer's business."
                    if mine["graph"]:
                        return f"{where}: flat requires a gradient now: the shard was written into it inside autograd."
        return None


class SendsOneAllGather(Check):
    """A call sends one all-gather of the vector, and nothing else."""

    hint = "One all_gather brings all slices. A broadcast for each rank, or a sum of vectors with zeros, sends more."

    @staticmethod
    def probe(seed: int, gather_parameters: Gather) -> Evidence:
        return _on(gather_parameters, seed + 2, (3,))

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for n, want in expected.items():
            for rank, (got, right) in enumerate(zip(seen[n], want, strict=True)):
                for case in CASES:
                    if got[case]["calls"] != right[case]["calls"]:
                        sent, allowed = (_words(one[case]["calls"]) for one in (got, right))
                        return f"{n}, rank {rank}: sent {sent}; {allowed} is right."
        return None


def _words(calls: list[list[Any]]) -> str:
    return ", ".join(f"{name} of {nbytes} B" for name, nbytes in calls) or "nothing"


GATHER = (FillsTheVectorInPlace, LeavesTheShardAlone, SendsOneAllGather)
