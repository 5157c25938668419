"""Check of part 2: a tensor goes to the next rank while this one works on."""

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from ..probing.plain import plain
from .groups import LIMIT, open_groups

LATE = 0.1  # seconds by which a neighbour comes later
PATIENCE = timedelta(seconds=4)  # for a call that must not wait: gloo gives up after this


def _tensors(seed: int, rank: int) -> list[Tensor]:
    """Return what rank `rank` of a group passes on: two tensors of one shape, of which the second is not contiguous."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    first, second = (torch.randn(2, 5, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    return [first, second.transpose(1, 2).contiguous().transpose(1, 2)]


def _numbers(tensor: Any) -> Any:
    """Return dtype, shape and elements of a tensor; of another thing, the type's name."""
    if not isinstance(tensor, Tensor):
        return type(tensor).__name__
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), plain(tensor).flatten().tolist()]


def _passes(pass_on: Callable[..., Any], seed: int, ranks: int) -> Evidence:
    """One rank of a group of `ranks`: pass two tensors on at once, and wait for the second first."""
    group = open_groups(ranks)
    tensors = _tensors(seed, dist.get_rank())
    before = [tensor.clone() for tensor in tensors]
    waits = [pass_on(tensor, group) for tensor in tensors]
    if not all(callable(wait) for wait in waits):
        return {"came": [type(wait).__name__ for wait in waits], "callable": False}
    second, first = waits[1](), waits[0]()
    return {
        "came": [_numbers(first), _numbers(second)],
        "callable": True,
        "kept": all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True)),
    }


def _with_a_late_neighbour(pass_on: Callable[..., Any], seed: int) -> Evidence | None:
    """One of two ranks: say whether the call came back, and what came. Rank 1 calls a while after rank 0's is back."""
    group, told = dist.new_group([0, 1], timeout=PATIENCE), dist.new_group([0, 1])
    rank = dist.get_rank()
    if rank > 1:
        return None
    if rank == 1:
        dist.broadcast(torch.zeros(1), src=0, group=told)
        time.sleep(LATE)
    try:
        wait = pass_on(_tensors(seed, rank)[0], group)
    except RuntimeError:
        wait = None
    if rank == 0:
        dist.broadcast(torch.zeros(1), src=0, group=told)
    came = None
    with contextlib.suppress(RuntimeError):  # the other one has given up
        came = _numbers(wait()) if wait else None
    return {"at once": wait is not None, "came": came}


def _work(pass_on: Callable[..., Any], seed: int) -> Evidence:
    """One rank: the groups of each size, then a neighbour that is late."""
    came = {str(ranks): _passes(pass_on, seed, ranks) for ranks in (4, 2, 1)}
    return {"came": came, "late": _with_a_late_neighbour(pass_on, seed)}


class PassesOnWithoutWaiting(Check):
    """The call returns at once; its wait() brings the tensor of the rank before this one in the group."""

    points = 1
    hint = (
        "dist.isend and dist.irecv (or dist.batch_isend_irecv) return before the message has gone. Who waits, and when?"
        "\nRanks in a group have numbers of their own: group_dst and group_src (group_peer in a P2POp) take those. What"
        " is sent must be contiguous, and there is nobody to send to in a group of one."
    )

    @staticmethod
    def probe(seed: int, pass_on: Callable[..., Any]) -> Evidence:
        return {"ranks": on_ranks(_work, 4, pass_on, seed, timeout=LIMIT)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for rank, (mine, right) in enumerate(zip(seen["ranks"], expected["ranks"], strict=True)):
            for ranks, want in right["came"].items():
                got, where = mine["came"][ranks], f"rank {rank} of 4, in a group of {ranks}"
                if not got["callable"]:
                    return f"A {got['came'][0]} came back; a function is asked for that waits and returns the tensor."
                if not got["kept"]:
                    return f"{where}: the tensor that was passed on has changed."
                for which, (a, b) in enumerate(zip(got["came"], want["came"], strict=True)):
                    if a != b:
                        others = [other["came"][ranks]["came"][which] for other in expected["ranks"]]
                        return f"{where}: {_wrong_tensor(a, b, others)}"
        for rank, (mine, right) in enumerate(zip(seen["ranks"], expected["ranks"], strict=True)):
            if right["late"] and not mine["late"]["at once"]:
                return "The call waits for its neighbour's: rank 0 did not come back before rank 1 had called, too."
            if right["late"] and mine["late"]["came"] != right["late"]["came"]:
                return f"On rank {rank}, wait() did not wait for a neighbour that was late."
        return None


def _wrong_tensor(got: Any, want: list[Any], others: list[Any]) -> str:
    if not isinstance(got, list):
        return f"wait() returned a {got}; the tensor that has come is asked for."
    if got[:2] != want[:2]:
        return f"what came is {got[0]} of shape {tuple(got[1])}; {want[0]} of shape {tuple(want[1])} was sent."
    if got in others:
        return "what came is not from the rank before it in the group."
    return "what came is no rank's tensor. (What is sent may be a view, and two may be under way.)"


PASSING = (PassesOnWithoutWaiting,)
