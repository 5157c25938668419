"""Check of part 2: a tensor goes to the next rank while this one works on."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from ..probing.plain import plain
from ..probing.signals import MEET, Signals
from .groups import LIMIT, open_groups
from .ring_spy import OUTSIDE, RingSpy

# Of groups of how many ranks, the rank that comes late, in turn: so each of the others is alone with both kinds of
# neighbors, and with the only one.
LATE = ((4, 0), (4, 1), (2, 0), (2, 2))
TAKE = 0.1  # seconds for which the late rank waits once more: a wait() that does not wait is over by then
SLACK = 64  # bytes of what is no message to the next rank
DTYPES = {4: torch.float32, 3: torch.int64, 2: torch.float64, 1: torch.float32}


def _tensors(seed: int, rank: int, dtype: torch.dtype) -> list[Tensor]:
    """Return what a rank passes on: three tensors of one shape, and a small one, in BF16 unless the others are in FP32.

    The second tensor is part of a larger one, transposed; the third is transposed on even ranks alone. In FP32, the
    shape has a dimension of 1, which an answer might lose. Beside int64, the small tensor has no dimension.
    """
    generator = torch.Generator().manual_seed(100 * seed + rank)
    shape = dtype.itemsize // 4, 20, 3
    first, second, third = ((1000 * torch.randn(shape, generator=generator)).to(dtype) for _ in range(3))
    third = third if rank % 2 else third.mT.contiguous().mT
    last = torch.randn(() if dtype == torch.int64 else (5,), generator=generator)
    last = last if dtype == torch.float32 else last.bfloat16()
    return [first, torch.cat([second.mT, first.mT], 2)[..., :20].mT, third, last]


def _numbers(tensor: Any) -> Any:
    """Return dtype, shape and elements of a tensor; of another thing, the type's name."""
    if not isinstance(tensor, Tensor):
        return type(tensor).__name__
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), plain(tensor).flatten().tolist()]


def _places(tensors: list[Tensor]) -> list[Any]:
    """Return where the elements of tensors lie in memory."""
    return [(tensor.data_ptr(), tensor.stride()) for tensor in tensors]


def _passes(pass_on: Callable[..., Any], seed: int, ranks: int) -> Evidence | None:
    """One rank of a group of `ranks`: pass two tensors on at once, wait for both, and then pass on two more.

    What came is looked at after all four calls.
    """
    group = open_groups(ranks)
    if group is None:
        return None
    tensors = _tensors(seed, dist.get_rank(), DTYPES[ranks])
    before, places = [tensor.clone() for tensor in tensors], _places(tensors)
    with RingSpy(group) as spy:
        came: list[Any] = []
        for two in (tensors[:2], tensors[2:]):
            waits = [pass_on(tensor, group) for tensor in two]
            if not all(callable(wait) for wait in waits):
                return {"came": [type(wait).__name__ for wait in waits], "callable": False}
            # As they were started, and the second first: neither a queue nor a stack of messages passes both.
            came += [wait() for wait in waits] if ranks == 2 else [wait() for wait in waits[::-1]][::-1]
    return {
        "rank": dist.get_rank(group),
        "came": [_numbers(tensor) for tensor in came],
        "callable": True,
        "kept": _places(tensors) == places and all(map(torch.equal, tensors, before)),
        "bytes": sum(tensor.nbytes for tensor in tensors),
        "sent": spy.evidence["sent"],
        "collectives": spy.evidence["collectives"],
    }


def _with_a_late_rank(pass_on: Callable[..., Any], seed: int, ranks: int, late: int, signals: Signals) -> Evidence:
    """One of four ranks, of which rank `late` calls after all others are back, and waits after all others have waited.

    They are in groups of `ranks`.

    Returns:
        what came; of the late rank, which others were not back when it called, and not done when it waited, too.
    """
    group, rank = open_groups(ranks), dist.get_rank()
    tensor = _tensors(seed + late, rank, torch.float32)[0]
    seen: Evidence = {"absent": [], "unfinished": []}
    if rank == late:
        seen["absent"] = signals.missing(f"back {ranks} {late}")
        time.sleep(TAKE)
    wait = pass_on(tensor, group)
    signals.give(f"back {ranks} {late}")
    if rank == late and not seen["absent"]:
        seen["unfinished"] = signals.missing(f"done {ranks} {late}")
    seen["came"] = _numbers(wait())
    signals.give(f"done {ranks} {late}")
    return seen


def _work(pass_on: Callable[..., Any], seed: int, folder: str) -> Evidence:
    """One rank: the groups of each size, then ranks that are late, as long as none has waited for them."""
    came: dict[str, Evidence | None] = {}
    signals, late = Signals(Path(folder)), []
    for ranks in DTYPES:
        came[str(ranks)] = seen = _passes(pass_on, seed, ranks)
        if seen is not None and not seen["callable"]:
            signals.give(f"stop {ranks}")  # of this stage alone: another rank may still be in the one before
        signals.give(f"group of {ranks}")
        if signals.missing(f"group of {ranks}", MEET) or signals.given(f"stop {ranks}"):
            return {"came": came, "late": []}
    for ranks, rank in LATE:
        late.append(_with_a_late_rank(pass_on, seed, ranks, rank, signals))
        if late[-1]["absent"] or late[-1]["unfinished"]:
            signals.give(f"waited for {ranks} {rank}")
        signals.give(f"over {ranks} {rank}")
        if signals.missing(f"over {ranks} {rank}", MEET) or signals.given(f"waited for {ranks} {rank}"):
            break
    return {"came": came, "late": late}


class PassesOnWithoutWaiting(Check):
    """The call returns at once; the function that it returns waits for the tensor of the group's previous rank."""

    points = 1
    hint = (
        "dist.isend and dist.irecv (or dist.batch_isend_irecv) return before the message has arrived. Which call waits?"
        " Both messages need it: one that you do not wait for may never get through, even the one you send."
        "\nRanks in a group have numbers of their own: group_dst and group_src (group_peer in a P2POp) take those. A"
        " tensor must be contiguous to be sent, and a group of one has no neighbor."
    )

    @staticmethod
    def probe(seed: int, pass_on: Callable[..., Any]) -> Evidence:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            return {"ranks": on_ranks(_work, 4, pass_on, seed, folder, timeout=LIMIT)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks in map(str, DTYPES):
            everywhere = [right["came"][ranks] for right in expected["ranks"]]
            others = [want["came"] for want in everywhere if want]
            for rank, (mine, want) in enumerate(zip(seen["ranks"], everywhere, strict=True)):
                got = mine["came"][ranks]
                wrong = want and (_wrong_pass(got, want, others) or _wrong_messages(got, want))
                if wrong:
                    return f"rank {rank} of 4, in a group of {ranks}: {wrong}"
        return _wrong_moment(seen["ranks"], expected["ranks"])


def _wrong_pass(got: Evidence, want: Evidence, others: list[Any]) -> str | None:
    """Say what is wrong with what came on one rank; `others` are what came on each of the group."""
    if not got["callable"]:
        return f"pass_on returned a {got['came'][0]}; it should return a function that waits and returns the tensor."
    if not got["kept"]:
        return "pass_on changed x, which belongs to the caller."
    for which, (a, b) in enumerate(zip(got["came"], want["came"], strict=True)):
        if a != b:
            if a in want["came"]:
                return (
                    f"call {which + 1} received the tensor of call {want['came'].index(a) + 1}. Do two calls mix up "
                    "their messages, or does a later call write where an earlier one has received?"
                )
            return _wrong_tensor(a, b, [other[which] for other in others])
    return None


def _wrong_tensor(got: Any, want: list[Any], others: list[Any]) -> str:
    if not isinstance(got, list):
        return f"the returned function returned a {got}; it should return the received tensor."
    if got[:2] != want[:2]:
        return (
            f"the received tensor is {got[0]} of shape {tuple(got[1])}; {want[0]} of shape {tuple(want[1])} was sent."
        )
    if got in others:
        return "the received tensor is not from the previous rank of the group."
    return "the received tensor is not one that any rank sent. Does pass_on handle views and two calls in flight?"


def _wrong_messages(got: Evidence, want: Evidence) -> str | None:
    """Say what a rank sends besides its tensors, or to ranks other than the next one."""
    for name, nbytes in got["collectives"].items():
        if nbytes > SLACK:
            return f"took part in a collective ({name}) of {nbytes:,} bytes; only a message to the next rank is needed."
    for other, nbytes in got["sent"].items():
        if other not in want["sent"] and nbytes > SLACK:
            who = "a rank outside the group" if int(other) == OUTSIDE else f"rank {other} of the group"
            return f"sent {nbytes:,} bytes to {who}, which is not the next one."
    for other, right in want["sent"].items():
        if got["sent"].get(other, 0) != right:
            return f"sent {got['sent'].get(other, 0):,} bytes to the next rank; the tensors have {want['bytes']:,}."
    return None


def _wrong_moment(seen: list[Evidence], expected: list[Evidence]) -> str | None:
    """Say which rank waits in the call, sends or receives later than in the call, or does not wait afterwards."""
    for rank, (mine, right) in enumerate(zip(seen, expected, strict=True)):
        for (ranks, late), got, want in zip(LATE, mine["late"], right["late"], strict=False):
            case = f" (in a group of {ranks})" if ranks < 4 else ""
            if got["absent"]:
                first = got["absent"][0]
                return (
                    f"pass_on waits for a neighbor: on rank {first} it did not return before rank {late} called "
                    f"it{case}."
                )
            if got["unfinished"]:
                return (
                    f"Rank {late} had called pass_on but not yet waited, and on rank {got['unfinished'][0]} the "
                    f"returned function did not return{case}. Does pass_on itself start both messages, or only that "
                    "function?"
                )
            if got["came"] != want["came"]:
                return (
                    f"On rank {rank}, the returned function did not wait for its message (rank {late} called "
                    f"late){case}."
                )
    return None


PASSING = (PassesOnWithoutWaiting,)
