"""Check of a reader of memory snapshots: what was allocated from a moment on, and never freed."""

import copy
import random
from collections.abc import Callable
from typing import Any

from ..base import Check, Evidence

Event = dict[str, Any]
StillThere = Callable[[list[Event], int], dict[str, int]]
LINES = ("forward", "hook", "backward", "step")


class _MadeTrace:
    """The trace of an allocator that hands out few addresses again and again."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now, self.events, self.free = 1_000, [], [(n + 1) << 20 for n in range(40)]

    def write(self, action: str, address: int, size: int, line: str) -> None:
        """Note an event; a microsecond or more passes."""
        self.now += self.rng.randint(1, 9)
        frames = [
            {"name": line, "filename": "train.py", "line": 7},
            {"name": "main", "filename": "train.py", "line": 90},
        ]
        event = {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames, "time_us": self.now}
        self.events.append(event)

    def allocate(self, line: str) -> tuple[int, int, str]:
        """Allocate a block at one of the free addresses."""
        address = self.free.pop(self.rng.randrange(len(self.free)))
        block = address, 512 * self.rng.randint(1, 4_000), line
        self.write("alloc", *block)
        return block

    def release(self, block: tuple[int, int, str]) -> None:
        """Ask for the block to be freed, and free it: the frames are those of the line that does so."""
        address, size, _ = block
        line = self.rng.choice(LINES)
        self.write("free_requested", address, size, line)
        self.write("free_completed", address, size, line)
        self.free.append(address)

    def step(self, keep: int) -> None:
        """Allocate blocks and free them all but `keep` of them."""
        blocks = [self.allocate(self.rng.choice(LINES)) for _ in range(12)]
        self.rng.shuffle(blocks)
        for block in blocks[keep:]:
            self.release(block)


def _said(still_there: StillThere, trace: list[Event], since: int) -> Evidence:
    answer = still_there(trace, since)
    if not isinstance(answer, dict):
        return {"returned": type(answer).__name__}
    return {"bytes": {str(line): int(size) for line, size in answer.items()}}


def _wrong(case: str, got: Evidence, want: Evidence) -> str | None:
    if "returned" in got:
        return f"{case}: return a dictionary; you return {got['returned']}."
    for line in sorted(set(want["bytes"]) | set(got["bytes"])):
        mine, right = got["bytes"].get(line), want["bytes"].get(line)
        if mine != right:
            said, should = (f"{n:,} bytes" if n is not None else "nothing" for n in (mine, right))
            return f"{case}: for the line {line!r} you say {said}; there should be {should}."
    return None


class _Reads(Check):
    """Compares what is said of made traces."""

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return next((wrong for case in expected if (wrong := _wrong(case, seen[case], expected[case]))), None)


class AddsUpWhatIsLeft(_Reads):
    """The answer holds, for each line, the bytes of all blocks that it allocated and nobody freed; no other lines."""

    hint = (
        "Play the trace from beginning to end, and keep a dictionary of the blocks that are there.\n"
        "`alloc` puts a block in under its address; `free_completed` takes it out. What is left at the end?\n"
        '`event["frames"][0]["name"]` is the line. Several blocks of a line add up.'
    )

    @staticmethod
    def probe(seed: int, still_there: StillThere) -> Evidence:
        seen: Evidence = {}
        for case, keep in (("nothing left", 0), ("one block left", 1), ("many left", 9)):
            made = _MadeTrace(seed + keep)
            made.step(keep)
            seen[case] = _said(still_there, made.events, 0)
        return seen


class KnowsThatAddressesReturn(_Reads):
    """An address is used again after its block was freed: that frees no later block, and counts no earlier one."""

    hint = "Does your dictionary know *which* block of an address was freed? Go through the events in order."

    @staticmethod
    def probe(seed: int, still_there: StillThere) -> Evidence:
        made = _MadeTrace(seed + 1)
        made.free = made.free[:14]
        for _ in range(6):
            made.step(0)
        made.step(5)
        return {"six steps on 14 addresses": _said(still_there, made.events, 0)}


class LooksFromAMomentOn(_Reads):
    """Blocks that were allocated before `since` do not count, whether they are freed later or not."""

    hint = (
        "Weights are older than the step that you look at.\n"
        "Compare `time_us` of the event that *allocated* the block with `since`: at or after."
    )

    @staticmethod
    def probe(seed: int, still_there: StillThere) -> Evidence:
        made = _MadeTrace(seed + 2)
        made.step(4)
        older = made.allocate("forward")
        made.allocate("forward")  # and stays: the block at the very moment
        since = made.now
        made.step(4)
        made.release(older)
        made.write("free_completed", 1 << 41, 4096, "step")  # allocated before the trace began
        return {"weights before, a step after": _said(still_there, made.events, since)}


class WaitsUntilItIsFree(_Reads):
    """A block is free at `free_completed`, not at `free_requested`; other actions (segments) are no blocks."""

    hint = (
        "Another stream may still use a block whose release was requested.\n"
        "Look at `alloc` and `free_completed` alone: `segment_alloc` is memory that the allocator bought."
    )

    @staticmethod
    def probe(seed: int, still_there: StillThere) -> Evidence:
        made = _MadeTrace(seed + 3)
        made.write("segment_alloc", 1 << 40, 20 << 20, "forward")
        made.step(3)
        block = made.allocate("hook")
        made.write("free_requested", *block)
        made.write("segment_free", 1 << 40, 20 << 20, "forward")
        return {"requested, not completed": _said(still_there, made.events, 0)}


class ChangesNoTrace(Check):
    """The events are the same afterwards."""

    hint = "Count in a dictionary of your own, and leave the events as they are."

    @staticmethod
    def probe(seed: int, still_there: StillThere) -> Evidence:
        made = _MadeTrace(seed + 4)
        made.step(3)
        before = copy.deepcopy(made.events)
        still_there(made.events, 0)
        return {"same": made.events == before}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return None if seen["same"] else "The trace that you were given has changed."


SNAPSHOT = (AddsUpWhatIsLeft, KnowsThatAddressesReturn, LooksFromAMomentOn, WaitsUntilItIsFree, ChangesNoTrace)
