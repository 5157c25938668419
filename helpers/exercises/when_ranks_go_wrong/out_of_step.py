"""Checks of `out_of_step`: where the records of the ranks differ, and which ranks to look at."""

import contextlib
import copy
import random
from typing import Any, ClassVar

from ..base import Check, Evidence
from .made_records import Records, made_records

JOBS = 24  # of each kind


class OnMadeRecords(Check):
    """Runs the answer on records that differ in one way."""

    kind: ClassVar[str]
    look: ClassVar[str]

    @classmethod
    def probe(cls, seed: int, out_of_step: Any) -> Evidence:
        chance = random.Random(f"{seed} {cls.kind}")
        answers, jobs, changed = [], [], False
        for _ in range(JOBS):
            calls, where, ranks = made_records(cls.kind, chance)
            before = copy.deepcopy(calls)
            answers.append(_plain(out_of_step(calls)))
            changed |= calls != before
            jobs.append([_made(before, where), [where, ranks] if where else None])
        return {"answers": answers, "jobs": jobs, "changed": changed}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for (made, right), got in zip(expected["jobs"], seen["answers"], strict=True):
            if got != right:
                answer = got if isinstance(got, str) else _shown(got)
                look = _form(got, right) or cls.look
                return f"{_words(made, right)}: the answer is {answer}; it should be {_shown(right)}. {look}"
        return "It changed the records that it was given. Work on copies." if seen["changed"] else None


def _form(got: Any, right: list[Any] | None) -> str | None:
    """Say what is wrong with the form of an answer that names the right call and the right ranks."""
    if isinstance(got, list) and right is not None:
        if got[0] == right[0] and sorted(got[1]) == right[1]:
            return "The ranks must be sorted."
        if got[0] == right[0] - 1 and got[1] == right[1]:
            return "Calls are counted from 1."
        if got[0] < right[0]:
            return f"Before call {right[0]}, the names and sizes are equal on all ranks; only lines differ."
    return None


def _plain(answer: Any) -> Any:
    """Return an answer as JSON keeps it: None, [n, ranks], or its type where it is neither."""
    if answer is None:
        return None
    if isinstance(answer, tuple | list) and len(answer) == 2 and isinstance(answer[1], tuple | list):
        with contextlib.suppress(TypeError, ValueError):
            return [int(answer[0]), [int(rank) for rank in answer[1]]]
    return type(answer).__name__


def _made(calls: Records, where: int | None) -> list[list[Any]]:
    """Return the n-th call of each rank as [rank, name, sizes]; without a name where there is none."""
    n = (where or 1) - 1
    return [[rank, *(own[n][:2] if n < len(own) else ("", ()))] for rank, own in sorted(calls.items())]


def _shown(answer: list[Any] | None) -> str:
    return "None" if answer is None else f"({answer[0]}, {answer[1]})"


def _words(made: list[list[Any]], right: list[Any] | None) -> str:
    """Describe the first call that differs, rank by rank."""
    if right is None:
        return f"{len(made)} ranks with equal records"
    calls = [f"rank {rank} {name} {list(sizes)}" if name else f"rank {rank} no call" for rank, name, sizes in made]
    return f"At call {right[0]}, {len(made)} ranks: {', '.join(calls[:6])}{', …' if len(calls) > 6 else ''}"


class FindsTheOtherCall(OnMadeRecords):
    """Finds the rank whose call differs from that of most ranks, even if it is rank 0, and the first such call."""

    kind = "call"
    look = "Compare the n-th calls of all ranks; stop at the first n at which they are not alike."
    hint = (
        "collections.Counter counts the n-th calls of all ranks. Stop at the first n, from 1, with two different calls."
    )


class FindsTheOtherSize(OnMadeRecords):
    """Finds the rank that sends a different size in the same collective."""

    kind = "size"
    look = "The names agree, but the sizes do not."
    hint = "Compare the first two entries of each call: name and sizes."


class CountsAMissingCall(OnMadeRecords):
    """A record that ends early counts as a rank without a call, and a majority may be without one."""

    kind = "missing"
    look = 'A record that ends before the n-th call counts as "no call", which may also be what most ranks did.'
    hint = "Go up to the length of the longest record. A shorter one has None at n, which is counted like a call."


class NeedsAMajority(OnMadeRecords):
    """If no call, or the lack of one, is common to more than half of the ranks, all ranks are named."""

    kind = "tie"
    look = "No call was made by more than half of the ranks, so no rank can be singled out."
    hint = "Half of the ranks is not a majority. If three ranks make three different calls, no call has a majority."


class LeavesEqualRecordsAlone(OnMadeRecords):
    """Records that differ only in their lines count as equal."""

    kind = "equal"
    look = "All ranks made the same calls, some of them from other lines."
    hint = "Do not compare the third entry of a call, its line."


OUT_OF_STEP = (FindsTheOtherCall, FindsTheOtherSize, CountsAMissingCall, NeedsAMajority, LeavesEqualRecordsAlone)
