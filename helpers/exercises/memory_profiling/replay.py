"""Check of a replay: what the meter recorded, as calls to the model of CUDA's allocator."""

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from ...meter.lifetime import Lifetime
from ...meter.operation import NO_OP
from ...planner.allocator import Block, CachingAllocator
from ..base import Check, Evidence

Log = list[tuple[int, int, int]]
Replay = Callable[[Sequence[Lifetime], CachingAllocator], Log]


class _Noting(CachingAllocator):
    """An allocator that records its calls, and what it has allocated and reserved after each.

    Blocks are numbered in the order of their allocation; -1 is anything that is not a block in use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[list[Any]] = []  # [verb, bytes]
        self.after: list[list[int]] = []  # [allocated, reserved]
        self.released: list[int] = []
        self._number: dict[int, int] = {}  # id of a block in use -> its number

    def allocate(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes`."""
        block = super().allocate(nbytes)
        self._number[id(block)] = sum(verb == "allocate" for verb, _ in self.orders)
        self._note("allocate", nbytes)
        return block

    def release(self, block: Block) -> None:
        """Free a block."""
        if not getattr(block, "used", False):
            self.released.append(-1)
            return
        self.released.append(self._number[id(block)])
        size = block.size
        super().release(block)
        self._note("release", size)

    def _note(self, verb: str, nbytes: int) -> None:
        self.orders.append([verb, nbytes])
        self.after.append([self.allocated, self.reserved])


def _lives(rng: random.Random, n: int) -> list[Lifetime]:
    """Return `n` lifetimes in random order, all of different sizes, that start and end at different moments."""
    times = rng.sample(range(10_000), 2 * n)
    sizes = [512 * size for size in rng.sample(range(1, 2_000), n)]  # exact: the allocator rounds up to 512 bytes
    spans = [sorted(times[2 * i : 2 * i + 2]) for i in range(n)]
    return [
        Lifetime(start, end, nbytes, "activations", NO_OP) for (start, end), nbytes in zip(spans, sizes, strict=True)
    ]


def _wrong_order(got: list[list[Any]], want: list[list[Any]]) -> str | None:
    """Name the first call that differs from the correct one."""
    for number, (mine, right) in enumerate(zip(got, want, strict=False), 1):
        if mine != right:
            due = f"Call {number} of {len(want)} should {right[0]} {right[1]:,} bytes"
            return f"{due}; yours would {mine[0]} {mine[1]:,} bytes."
    if len(got) != len(want):
        return (
            f"You make {len(got)} calls; expected {len(want)}. A lifetime with an end makes two, one without makes one."
        )
    return None


class OrdersInTime(Check):
    """Each block is allocated at its start and released at its end, in order of time."""

    hint = (
        "Each lifetime with an end implies two calls. List all calls before you make the first one.\n"
        "Tuples (time, ...) sort by time. Loop over them, and allocate or release."
    )

    @staticmethod
    def probe(seed: int, replay: Replay) -> Evidence:
        allocator = _Noting()
        lives = _lives(random.Random(seed), 20)
        min(lives, key=lambda life: life.start).start = 0
        lives[10].end = lives[10].start  # allocated and released at the same moment
        before = [(life, life.start, life.end) for life in lives]
        replay(lives, allocator)
        return {"orders": allocator.orders, "same": before == [(life, life.start, life.end) for life in lives]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["same"]:
            return "The list of lifetimes that you were given has changed: sort a new list instead."
        return _wrong_order(seen["orders"], expected["orders"])


class ReleasesTheSameBlock(Check):
    """A release gets the block that was allocated for this lifetime, even if others have the same size."""

    hint = "Keep the blocks that `allocate` returned in a dictionary: lifetime -> its block."

    @staticmethod
    def probe(seed: int, replay: Replay) -> Evidence:
        lives = _lives(random.Random(seed + 1), 12)
        for life in lives:
            life.nbytes = 4096
        allocator = _Noting()
        replay(lives, allocator)
        return {"released": allocator.released}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for number, (mine, right) in enumerate(zip(seen["released"], expected["released"], strict=False), 1):
            if mine != right:
                what = "something that is not a block in use" if mine < 0 else f"the block of allocation {mine + 1}"
                return f"Twelve blocks of one size: release {number} returns {what}; expected: allocation {right + 1}."
        if len(seen["released"]) != len(expected["released"]):
            return f"Twelve lifetimes have an end; you release {len(seen['released'])} blocks."
        return None


class KeepsWhatNeverEnds(Check):
    """A block without an end is never released."""

    hint = "Weights outlive the log. Their `end` is None, so they imply one call instead of two."

    @staticmethod
    def probe(seed: int, replay: Replay) -> Evidence:
        rng = random.Random(seed + 2)
        lives = _lives(rng, 10)
        for life in rng.sample(lives, 4):
            life.end = None
        allocator = _Noting()
        replay(lives, allocator)
        return {"released": len(allocator.released), "ended": sum(life.end is not None for life in lives)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["released"] == expected["released"]:
            return None
        return (
            f"{expected['released']} of 10 lifetimes have an end; you release {seen['released']} blocks. What do you "
            "do where `end` is None?"
        )


class AllocatesBeforeReleasing(Check):
    """At the same moment, allocations come before releases."""

    hint = "Tuples with the same time are sorted by their second element."

    @staticmethod
    def probe(seed: int, replay: Replay) -> Evidence:
        lives = sorted(_lives(random.Random(seed + 3), 8), key=lambda life: life.start)
        for before, after in itertools.pairwise(lives):
            before.end = after.start
        allocator = _Noting()
        replay(lives, allocator)
        return {"orders": allocator.orders}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _wrong_order(seen["orders"], expected["orders"])
        return wrong and f"Each block ends at the moment when the next starts. {wrong}"


class LogsEachCall(Check):
    """The list has one entry per call: the time, and what is allocated and reserved right after it."""

    hint = "Append (time, allocator.allocated, allocator.reserved) in the loop, after the call."

    @staticmethod
    def probe(seed: int, replay: Replay) -> Evidence:
        lives = _lives(random.Random(seed + 4), 20)
        due = sorted(time for life in lives for time in (life.start, life.end))
        allocator = _Noting()
        log = [[int(number) for number in entry] for entry in replay(lives, allocator)]
        return {"log": log, "after": allocator.after, "due": due}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if len(seen["log"]) != len(seen["after"]):
            return f"Your list has {len(seen['log'])} entries for {len(seen['after'])} calls."
        rows = zip(seen["log"], seen["after"], expected["due"], strict=False)
        for number, (entry, held, due) in enumerate(rows, 1):
            if len(entry) != 3:
                return f"Entry {number} has {len(entry)} numbers; expected three: time, allocated, reserved."
            if entry[1:] != held:
                said, right = (f"{a:,} allocated and {r:,} reserved" for a, r in (entry[1:], held))
                return f"Entry {number} is {said}; right after that call it was {right}."
            if entry[0] != due:
                return f"Entry {number} has the time {entry[0]:,}; that call belongs at {due:,}."
        return None


REPLAY = (OrdersInTime, ReleasesTheSameBlock, KeepsWhatNeverEnds, AllocatesBeforeReleasing, LogsEachCall)
