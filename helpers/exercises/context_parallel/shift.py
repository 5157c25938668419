"""Check of the exchange round the ring: what arrives, who waits for whom, and what is sent."""

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from ..tensor_parallel.inputs import drawn
from ..tensor_parallel.said import by_rank, in_words, noted, wrong_tensor

Shift = Callable[..., tuple[list[Tensor], Callable[[], Any]]]
PATIENCE = 12.0  # seconds in which a rank that does not wait says so, on a very busy machine
CASES = ("one tensor", "shapes and dtypes", "not contiguous")
SHIFTS = ("the first", "the second", "what went on from there")
HANGS = 30.0  # seconds after which ranks that wait for each other are given up


def _strided(t: Tensor) -> Tensor:
    """Return the same numbers in another order in memory."""
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def _passed(seed: int, shift: Shift) -> list[Evidence]:
    """One rank: what arrives in a call with several tensors, and what has become of those that were given."""
    rank, n = dist.get_rank(), dist.get_world_size()
    cases = (  # in the order of CASES
        [drawn(seed, 4, 3)],
        [drawn(seed, 2, 3), drawn(seed + 1, 5, dtype=torch.float32), drawn(seed + 2, 1, 2, 2, 2)],
        [[_strided(t) for t in drawn(seed + 3, 4, 3, 2)]],
    )
    seen = []
    for tensors in cases:
        mine, right = [t[rank] for t in tensors], [t[(rank - 1) % n] for t in tensors]
        kept = [t.clone() for t in mine]
        with Collectives() as calls:
            arriving, finish = shift(*mine)
            finish()
        got = [noted(t) for t in arriving]
        for t in arriving:
            t.fill_(7)  # the new owner may write
        sent = [list(call) for call in calls.calls if call.name not in ("recv", "send")]
        report = {
            "got": got,
            "dtypes": [str(t.dtype).removeprefix("torch.") for t in arriving],
            "right": [noted(t) for t in right],
            "right_dtypes": [str(t.dtype).removeprefix("torch.") for t in right],
            "next": [noted(t[(rank + 1) % n]) for t in tensors],
            "own": [noted(t) for t in kept],
            "changed": any(not torch.equal(t, before) for t, before in zip(mine, kept, strict=True)),
            "bytes": sum(call.nbytes for call in calls.calls if call.name == "send"),
            "right_bytes": sum(t.nbytes for t in mine),
            "others": sent,
        }
        seen.append(report)
    return seen


class HandsOnToTheNext(Check):
    """Each rank gets the tensors of the rank before, in their order, shapes and dtypes, and keeps its own."""

    hint = (
        "To (rank + 1) % ranks, from (rank - 1) % ranks: who comes after the last rank?\n"
        "Receive into tensors of your own: `torch.empty_like(tensor)`.\n"
        "Messages take contiguous tensors: `tensor.contiguous()`."
    )

    compared = False

    @staticmethod
    def probe(seed: int, shift: Shift) -> Evidence:
        return {"ranks": [on_ranks(_passed, n, seed, shift, timeout=HANGS) for n in (2, 3)]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks in seen["ranks"]:
            for case, reports in zip(CASES, zip(*ranks, strict=True), strict=True):
                if said := _wrong_arrivals(case, reports):
                    return said
                texts = [
                    "was changed, or shares memory with what arrives" if got["changed"] else None for got in reports
                ]
                if said := by_rank(f"{case}, what was sent", texts):
                    return said
        return None


def _wrong_arrivals(case: str, reports: Sequence[Evidence]) -> str | None:
    """Say which tensor is not what the rank before has sent; `reports` are those of the ranks."""
    for i in range(len(reports[0]["right"])):
        texts = []
        for got in reports:
            if len(got["got"]) != len(got["right"]):
                return f"{case}: {len(got['right'])} tensors were given, and {len(got['got'])} arrive."
            mistakes = {
                "is what the next rank sends: it went the wrong way round": got["next"][i],
                "is this rank's own": got["own"][i],
            }
            said = wrong_tensor(got["got"][i], got["right"][i], mistakes)
            if not said and got["dtypes"][i] != got["right_dtypes"][i]:
                said = f"is {got['dtypes'][i]}; {got['right_dtypes'][i]} was sent"
            texts.append(said)
        if said := by_rank(f"{case}, tensor {i} that arrives", texts):
            return said
    return None


class SendsEachTensorOnce(Check):
    """Each tensor is sent once, to one rank; nothing else is sent, and no collective is called."""

    hint = "One isend and one irecv for each tensor. What else does your code send, or send twice?"

    compared = False

    @staticmethod
    def probe(seed: int, shift: Shift) -> Evidence:
        return {"ranks": on_ranks(_passed, 3, seed, shift, timeout=HANGS)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, reports in zip(CASES, zip(*seen["ranks"], strict=True), strict=True):
            texts = []
            for got in reports:
                said = f"calls {in_words(got['others'])}" if got["others"] else None
                if not said and got["bytes"] != got["right_bytes"]:
                    said = f"sends {got['bytes']:,} B; the tensors have {got['right_bytes']:,}"
                texts.append(said)
            if said := by_rank(case, texts):
                return said
        return None


def _late(seed: int, shift: Shift, folder: str) -> Evidence:
    """One rank: rank 0 comes late. Do the others return before it has come, and have they waited after `finish`?"""
    rank, n = dist.get_rank(), dist.get_world_size()
    tensors = drawn(seed, 50_000)
    flag = Path(folder) / f"{dist.get_world_size()} {rank}"
    came: list[int] = []
    if rank == 0:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and len(came) < n - 1:
            came = [r for r in range(1, n) if (Path(folder) / f"{n} {r}").exists()]
            time.sleep(0.01)
        time.sleep(0.3)  # now somebody who does not wait in `finish` reads too early
    arriving, finish = shift(tensors[rank])
    flag.touch()
    finish()
    return {"came": came, "got": noted(arriving[0][:100]), "right": noted(tensors[(rank - 1) % n][:100])}


class WaitsInFinishOnly(Check):
    """`shift` returns before the other ranks have come; `finish` waits until everything has arrived."""

    hint = (
        "Which of your calls waits? `dist.send`, `dist.recv` and `request.wait()` do; those in a batch start and "
        "return.\n"
        "`finish` is a function that you return: it calls `wait()` on each request, and is not called in `shift`."
    )

    compared = False

    @staticmethod
    def probe(seed: int, shift: Shift) -> Evidence:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            return {"ranks": on_ranks(_late, 3, seed, shift, folder, timeout=PATIENCE + HANGS)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        waiting = [rank for rank in range(1, len(seen["ranks"])) if rank not in seen["ranks"][0]["came"]]
        if waiting:
            ranks = " and ".join(map(str, waiting))
            return f"Rank 0 came late. Before it called `shift`, that of rank {ranks} had not returned: it waits."
        texts = [
            "has not arrived: nobody waited for it" if wrong_tensor(got["got"], got["right"], {}) else None
            for got in seen["ranks"]
        ]
        return by_rank("After `finish`, the tensor", texts)


def _several(seed: int, shift: Shift) -> Evidence:
    """One rank: two shifts of the same shape are under way at a time; then a third with the tensors of the first."""
    rank, n = dist.get_rank(), dist.get_world_size()
    first, second = drawn(seed, 4, 3), drawn(seed + 1, 4, 3)
    one, finish_one = shift(first[rank])
    two, finish_two = shift(second[rank])
    finish_one()
    finish_two()
    three, finish_three = shift(one[0])
    finish_three()
    before, back = (rank - 1) % n, (rank - 2) % n
    return {  # in the order of SHIFTS
        "got": [noted(tensors[0]) for tensors in (one, two, three)],
        "right": [noted(t) for t in (first[before], second[before], first[back])],
    }


class SeveralAtATime(Check):
    """Several shifts may be under way, and none writes into what another has returned."""

    hint = "Does something outlive the call: a buffer that is used again, a list of requests outside the function?"

    compared = False

    @staticmethod
    def probe(seed: int, shift: Shift) -> Evidence:
        return {"ranks": on_ranks(_several, 3, seed, shift, timeout=HANGS)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for i, name in enumerate(SHIFTS):
            texts = [wrong_tensor(got["got"][i], got["right"][i], {}) for got in seen["ranks"]]
            if said := by_rank(f"Two shifts at a time, {name}", texts):
                return said
        return None


SHIFT = (HandsOnToTheNext, SendsEachTensorOnce, WaitsInFinishOnly, SeveralAtATime)
