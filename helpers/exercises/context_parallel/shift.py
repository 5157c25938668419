"""Check of the exchange round the ring: what arrives, who waits for whom, and what is sent.

All look at the same runs: one start of 3 ranks, in three stages, and one of 2.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...ranks.collectives import Collectives
from ..base import Check, Evidence
from ..probing.signals import MEET, PATIENCE, Signals
from ..probing.stages import stages_on_ranks
from ..tensor_parallel.inputs import drawn
from ..tensor_parallel.said import by_rank, in_words, noted, wrong_tensor

Shift = Callable[..., tuple[list[Tensor], Callable[[], Any]]]
LATE = (0, 1, 2)  # the rank that comes late, in turn: each is somebody's neighbor
CASES = ("one tensor", "shapes and dtypes", "not contiguous")
SHIFTS = ("from the first", "from the second", *(f"passed on, from shift {i}" for i in (3, 4, 5)))
HANGS = PATIENCE + 6.0  # seconds after which ranks that wait for each other are given up; work that takes one or two
HANGS_PASSING = 12.0  # the same for the two ranks, of which none comes late


def _strided(t: Tensor) -> Tensor:
    """Return the same numbers in another order in memory."""
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def _passed(_: Path, seed: int, shift: Shift) -> list[Evidence]:
    """One rank: what arrives in a call with several tensors, and what has become of those that were given."""
    rank, n = dist.get_rank(), dist.get_world_size()
    cases = (  # in the order of CASES
        [drawn(seed, 4, 3)],
        [
            drawn(seed, 2, 3),
            drawn(seed + 1, 5, dtype=torch.float32),
            drawn(seed + 2, 1, 2, 2, 2),
            [torch.tensor(100 + rank) for rank in range(n)],  # a single number
        ],
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


def _several(_: Path, seed: int, shift: Shift) -> Evidence:
    """One rank: two shifts of the same shape are under way at a time; then what the first has brought goes on."""
    rank, n = dist.get_rank(), dist.get_world_size()
    first, second = drawn(seed, 4, 3), drawn(seed + 1, 4, 3)
    one, finish_one = shift(first[rank])
    two, finish_two = shift(second[rank])
    finish_one()
    finish_two()
    arrived, right = [one[0], two[0]], [first[(rank - 1) % n], second[(rank - 1) % n]]
    going = one[0]
    for step in range(2, len(SHIFTS)):
        (going,), finish = shift(going)
        finish()
        arrived.append(going)
        right.append(first[(rank - step) % n])
    return {"got": [noted(t) for t in arrived], "right": [noted(t) for t in right]}  # in the order of SHIFTS


def _late(folder: Path, seed: int, shift: Shift) -> list[Evidence]:
    """One rank: each rank comes late in turn, a later one only if none has waited for those before."""
    seen, signals = [], Signals(folder)
    for late in LATE:
        seen.append(_one_late(seed + late, shift, late, signals))
        if seen[-1]["absent"] or seen[-1]["unfinished"]:
            signals.give(f"waited for {late}")
        signals.give(f"over {late}")
        if signals.missing(f"over {late}", MEET) or signals.given(f"waited for {late}"):
            break
    return seen


def _one_late(seed: int, shift: Shift, late: int, signals: Signals) -> Evidence:
    """One rank, of which `late` calls after the others are back, and finishes after the others have finished."""
    rank, n = dist.get_rank(), dist.get_world_size()
    tensors = drawn(seed, 50_000)
    seen: Evidence = {"absent": [], "unfinished": []}
    if rank == late:
        seen["absent"] = signals.missing(f"back {late}")
        time.sleep(0.3)  # now an answer that does not wait in `finish` reads too early
    arriving, finish = shift(tensors[rank])
    signals.give(f"back {late}")
    if rank == late and not seen["absent"]:
        seen["unfinished"] = signals.missing(f"done {late}")
    finish()
    signals.give(f"done {late}")
    there = {"right": tensors[(rank - 1) % n], "own": tensors[rank], "next": tensors[(rank + 1) % n]}
    return seen | {"got": noted(arriving[0][:100])} | {name: noted(t[:100]) for name, t in there.items()}


def observe(seed: int, shift: Shift) -> Evidence:
    """Return an entry for each stage, in which each rank tells what it saw, by the number of ranks."""
    three = {"passed": _passed, "several": _several, "late": _late}
    entries = stages_on_ranks(three, 3, seed, shift, timeout=HANGS)
    found = {name: {"seen": {"3": entry["seen"]}} if "seen" in entry else entry for name, entry in entries.items()}
    if "seen" in found["passed"]:  # a rank whose next one is the one before it, too
        two = stages_on_ranks({"passed": _passed}, 2, seed, shift, timeout=HANGS_PASSING)["passed"]
        found["passed"] = {"seen": found["passed"]["seen"] | {"2": two["seen"]}} if "seen" in two else two
    return found


class HandsOnToTheNext(Check):
    """Each rank gets the tensors of the previous rank, in their order, shapes and dtypes, and keeps its own."""

    hint = (
        "Send to (rank + 1) % ranks, and receive from (rank - 1) % ranks. Which rank comes after the last one?\n"
        "Receive into tensors of your own: `torch.empty_like(tensor)`.\n"
        "Messages take contiguous tensors: `tensor.contiguous()`."
    )

    compared = False

    probe, stage = staticmethod(observe), "passed"

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for ranks in seen.values():
            for case, reports in zip(CASES, zip(*ranks, strict=True), strict=True):
                if said := _wrong_arrivals(case, reports):
                    return said
                changed = "changed, or share memory with those that arrive"
                texts = [changed if got["changed"] else None for got in reports]
                if said := by_rank(f"{case}, the tensors that `shift` was given", texts):
                    return said
        return None


def _wrong_arrivals(case: str, reports: Sequence[Evidence]) -> str | None:
    """Say which tensor is not what the rank before has sent; `reports` are those of the ranks."""
    for i in range(len(reports[0]["right"])):
        texts = []
        for got in reports:
            if len(got["got"]) != len(got["right"]):
                return f"{case}: {len(got['right'])} tensors were sent, but {len(got['got'])} arrive."
            mistakes = {
                "is the tensor of the next rank: it traveled in the wrong direction": got["next"][i],
                "is this rank's own tensor, not one that it received": got["own"][i],
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

    hint = "One isend and one irecv per tensor. What else does your code send, or send twice?"

    compared = False

    probe, stage = staticmethod(observe), "passed"

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, reports in zip(CASES, zip(*seen["3"], strict=True), strict=True):
            texts = []
            for got in reports:
                said = f"calls {in_words(got['others'])}" if got["others"] else None
                if not said and got["bytes"] != got["right_bytes"]:
                    said = f"sends {got['bytes']:,} B; the tensors have {got['right_bytes']:,}"
                texts.append(said)
            if said := by_rank(case, texts):
                return said
        return None


class WaitsInFinishOnly(Check):
    """`shift` returns before the other ranks call it; `finish` waits until everything has arrived."""

    hint = (
        "Which of your calls waits? `dist.send`, `dist.recv` and `request.wait()` do; those in a batch start and "
        "return.\n"
        "`finish` is a function that you return: it calls `wait()` on each request, and is not called in `shift`."
    )

    compared = False

    probe, stage = staticmethod(observe), "late"

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for late, reports in zip(LATE, zip(*seen["3"], strict=True), strict=False):
            if waiting := " and ".join(map(str, reports[late]["absent"])):
                return (
                    f"Rank {late} calls `shift` late. Until then, `shift` on rank {waiting} does not return: it waits."
                )
            if waiting := " and ".join(map(str, reports[late]["unfinished"])):
                return (
                    f"Rank {late} has called `shift`, but not yet `finish`, and `finish` on rank {waiting} does not "
                    "return. Does the call start the messages, or only `finish`?"
                )
            texts = []
            for got in reports:
                arrived = any(wrong_tensor(got["got"], got[name], {}) is None for name in ("right", "own", "next"))
                texts.append(None if arrived else "has not arrived: `finish` did not wait for it")
            if said := by_rank("After `finish`, the tensor", texts):
                return said
        return None


class SeveralAtATime(Check):
    """Several shifts may be in flight, and none writes into the results of another."""

    hint = "Does anything outlive the call: a reused buffer, a list of requests outside the function?"

    compared = False
    after = ("hands_on_to_the_next", "waits_in_finish_only")

    probe, stage = staticmethod(observe), "several"

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for i, name in enumerate(SHIFTS):
            texts = [wrong_tensor(got["got"][i], got["right"][i], {}) for got in seen["3"]]
            if said := by_rank(f"Two shifts at a time, the tensor that arrives {name}", texts):
                return said
        return None


SHIFT = (HandsOnToTheNext, SendsEachTensorOnce, WaitsInFinishOnly, SeveralAtATime)
