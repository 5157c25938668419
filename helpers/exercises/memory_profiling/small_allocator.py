"""Checks of a small caching allocator: what it returns, and what it asks of the GPU, after each call of a script."""

import itertools
import random
from collections.abc import Callable
from typing import Any, ClassVar

from ...core.units import KiB, MiB, human_bytes
from ...planner.allocator import OutOfMemory
from ..base import Check, Evidence
from .pretend_gpu import PretendGPU

Script = list[tuple[str, int]]  # ("allocate", bytes) or ("release", number of the allocation, from 0)
Row = dict[str, Any]
_FIRST = 1 << 32  # address of a GPU's first segment
_NAMES = {"at": "the address, relative to the first segment,", "allocated": "`allocated`", "reserved": "`reserved`"}


def _play(make: Callable[[PretendGPU], Any], script: Script, capacity: int | None = None) -> list[Row]:
    """Run a script; after each call note the address, both figures, and what was asked of the GPU."""
    gpu = PretendGPU(capacity)
    allocator, blocks, rows = make(gpu), [], []
    for verb, number in script:
        before, at = len(gpu.calls), None
        if verb == "allocate":
            try:
                blocks.append(allocator.allocate(number))
                at = int(blocks[-1]) - _FIRST
            except OutOfMemory:
                blocks.append(None)
                at = "out of memory"
        elif blocks[number] is not None:
            allocator.release(blocks[number])
        calls = [[verb, nbytes] for verb, nbytes in gpu.calls[before:]]
        freed = sorted(call for call in calls if call[0] == "free")  # in any order
        calls = [*(c for c in calls if c[0] == "refused"), *freed, *(c for c in calls if c[0] == "malloc")]
        rows.append({"at": at, "allocated": int(allocator.allocated), "reserved": int(allocator.reserved)})
        rows[-1]["calls"] = calls
    return rows


def _allocate(*sizes: float) -> Script:
    return [("allocate", int(size)) for size in sizes]


def _release(*numbers: int) -> Script:
    return [("release", number) for number in numbers]


def _told(script: Script) -> str:
    """Return the last calls of a script in words."""
    words = [f"allocate({n:,})" if verb == "allocate" else f"release(block {n + 1})" for verb, n in script[-6:]]
    return ("... " if len(script) > 6 else "") + ", ".join(words)


class OnScripts(Check):
    """Runs scripts of calls and compares some of what is seen after each call."""

    fields: ClassVar[tuple[str, ...]]
    look: ClassVar[str]
    capacity: ClassVar[int | None] = None

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        """Return the scripts, each for a new allocator."""
        raise NotImplementedError

    @classmethod
    def probe(cls, seed: int, make: Callable[[PretendGPU], Any]) -> Evidence:
        scripts = cls.scripts(random.Random(f"{seed} {cls.__name__}"))
        return {"scripts": scripts, "rows": [_play(make, script, cls.capacity) for script in scripts]}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for script, rows, right in zip(expected["scripts"], seen["rows"], expected["rows"], strict=True):
            for number, (row, due) in enumerate(zip(rows, right, strict=True), 1):
                for field in cls.fields:
                    if row[field] != due[field]:
                        return f"{_told(script[:number])}: {_difference(field, row[field], due[field])} {cls.look}"
        return None


def _difference(field: str, got: Any, due: Any) -> str:
    """Say what was seen and what was expected."""
    if field == "calls":
        said = [", ".join(f"{verb} {human_bytes(n)}" for verb, n in calls) or "nothing" for calls in (got, due)]
        return f"the last call makes these calls to the GPU: {said[0]}; expected: {said[1]}."
    said = [f"{value:,}" if isinstance(value, int) else str(value) for value in (got, due)]
    return f"{_NAMES[field]} is {said[0]}; expected: {said[1]}."


class RoundsUp(OnScripts):
    """`allocated` counts each request as a multiple of 512 bytes."""

    fields, look = ("allocated",), "Each request is rounded up to a multiple of 512 bytes."
    hint = "-(-n // 512) rounds up where n // 512 rounds down."

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        return [_allocate(1, 511, 512, 513, rng.randint(2_000, 9_000)), _allocate(5 * MiB + rng.randint(1, 511))]


class AsksForSegments(OnScripts):
    """A request that finds no block asks the GPU for a segment of the right size."""

    fields, look = ("calls", "reserved"), "The size of the segment depends on the rounded request."
    hint = "Three cases: up to 1 MiB, below 10 MiB, and from 10 MiB on. Check what happens at 1 MiB and at 10 MiB."

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        sizes = (1, MiB, MiB + 1, 5 * MiB, 10 * MiB - 512, 10 * MiB - 1, 10 * MiB, 12 * MiB, rng.randint(13, 60) * MiB)
        return [_allocate(size) for size in (*sizes, 33 * MiB, 40 * MiB + 1)]


class KeepsPoolsApart(OnScripts):
    """Requests up to 1 MiB and larger ones never share a segment."""

    fields, look = ("calls",), "A free block serves only requests of the pool that its segment belongs to."
    hint = "Record each segment's pool, and check it when you look for a free block."

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        small, large = rng.randint(1_000, 900_000), rng.randint(1_100_000, 2_000_000)
        return [
            _allocate(5 * MiB, small),
            [*_allocate(5 * MiB), *_release(0), *_allocate(small, large)],
            [*_allocate(small), *_release(0), *_allocate(large, small)],
        ]


class TakesTheBestFit(OnScripts):
    """The smallest free block that is large enough is used; among equal ones, the one with the lowest address."""

    fields, look = ("at",), "Take the smallest free block that is large enough; among equal ones, the lowest address."
    hint = "min() of tuples (size, address) compares sizes first, and then addresses."

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        sizes = [30, 12, 24, 12, 16]
        rng.shuffle(sizes)
        order = rng.sample(range(5), 5)
        cached = [*_allocate(*(size * MiB for size in sizes)), *_release(*order)]
        wanted = [*_allocate(12 * MiB), *_allocate(12 * MiB), *_allocate(23.5 * MiB), *_allocate(15.5 * MiB)]
        return [[*cached, *wanted], [*cached, *_allocate(20 * MiB, 10 * MiB)]]


class Splits(OnScripts):
    """The part of a block that a request does not need serves later requests, unless it is too small."""

    fields, look = (
        ("at", "allocated"),
        "A remainder of at least 512 bytes (small pool) or more than 1 MiB (large pool) is split off. A smaller one "
        "stays part of the block, and `allocated` counts it.",
    )
    hint = (
        "The request gets the beginning of the block; the rest becomes a free block of the same segment.\n"
        "A remainder that is too small stays part of the block: `allocated` counts it. What about one of exactly 1 MiB?"
    )

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        return [
            _allocate(*(rng.randint(200, 400) * KiB for _ in range(4))),
            _allocate(5 * MiB, 4 * MiB, rng.randint(6, 8) * MiB),
            _allocate(19 * MiB, 2 * MiB),  # a rest of 1 MiB
            _allocate(19 * MiB - 512, 2 * MiB),
            _allocate(17 * MiB, rng.randint(3, 4) * 0.45 * MiB + MiB / 2),
            _allocate(MiB, MiB - 512, 512, 512),  # a rest of 512 bytes
        ]


class Merges(OnScripts):
    """A freed block merges with the free blocks before and after it, and never beyond its segment."""

    fields, look = (
        ("at", "calls"),
        "Free neighbors of one segment are one block; segments stay apart even if they adjoin.",
    )
    hint = (
        "Two free blocks of one segment are neighbors if one ends where the other begins.\n"
        "A block can have a free neighbor on each side. Both merge with it."
    )

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        four, pair = _allocate(*[5 * MiB] * 4), rng.choice((0, 1, 2))
        return [
            [*four, *_release(pair, pair + 1), *_allocate(9.5 * MiB)],
            [*four, *_release(pair + 1, pair), *_allocate(9.5 * MiB)],
            [*four, *_release(0, 2, 1), *_allocate(15 * MiB)],
            [*four, *_release(1, 3, 2), *_allocate(15 * MiB)],
            [*four, *_release(0, 2), *_allocate(9.5 * MiB)],  # the one between them is in use
            [*four, *four, *_release(*rng.sample(range(8), 8)), *_allocate(30 * MiB)],
            [*_allocate(*[MiB] * 4), *_release(1, 2, 0, 3), *_allocate(MiB, MiB)],
        ]


class KeepsWhatIsFreed(OnScripts):
    """A freed block stays reserved, and the next request of its size makes no call to the GPU."""

    fields, look = ("allocated", "reserved", "calls"), "Releasing lowers `allocated` and leaves the segments alone."
    hint = "`release` does not call the GPU. That is what makes the allocator a cache."

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        sizes = [rng.randint(1, 60) * MiB // 2 for _ in range(6)]
        first = [*_allocate(*sizes), *_release(*rng.sample(range(6), 6))]
        return [[*first, *_allocate(*sorted(sizes)[-1:]), *_release(6)], [*_allocate(4_096), *_release(0)]]


class TriesAgain(OnScripts):
    """When the GPU refuses, all segments without a block in use go back to it, and the request is made once more."""

    fields, look = (
        ("calls", "reserved"),
        "A segment goes back only if none of its blocks is in use, whichever pool it belongs to.",
    )
    capacity = 100 * MiB
    hint = (
        "`gpu.malloc` raises OutOfMemory. Catch it, give segments back, and call it again.\n"
        "A segment is unused if one free block is as large as the segment."
    )

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        first = rng.randint(16, 24) * 2
        return [
            [*_allocate(first * MiB, 24 * MiB, 1_000), *_release(0, 1, 2), *_allocate(90 * MiB)],
            [*_allocate(40 * MiB, 5 * MiB, 5 * MiB, 1_000, 20 * MiB), *_release(0, 2), *_allocate(50 * MiB)],
            [*_allocate(40 * MiB, 30 * MiB), *_release(0, 1), *_allocate(30 * MiB, 62 * MiB)],
            [*_allocate(80 * MiB, *[MiB] * 18), *_release(*range(1, 19)), *_allocate(5 * MiB)],
        ]


class RefusesCleanly(OnScripts):
    """If the second try fails, OutOfMemory is raised, and the allocator still works."""

    fields, look = (
        ("at", "allocated", "reserved"),
        "A failed request returns the unused segments and changes nothing else.",
    )
    capacity = 100 * MiB
    hint = "Let the second OutOfMemory through. Change `allocated` and the blocks only once `gpu.malloc` has succeeded."

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        size = rng.randint(41, 59)
        return [
            [*_allocate(size * MiB, 20 * MiB), *_release(1), *_allocate(90 * MiB, 12 * MiB), *_release(0, 3)],
            [*_allocate(*[5 * MiB] * 16), *_release(*range(1, 16, 2)), *_allocate(24 * MiB, 5 * MiB)],
            _allocate(101 * MiB, 30 * MiB),
        ]


class HoldsInALongRun(OnScripts):
    """In a long run of requests and releases each address is the expected one."""

    fields, look = (
        ("at", "allocated", "reserved"),
        "This run exercises all the rules together; shorten it until you see which one fails.",
    )
    capacity = 400 * MiB
    hint = "Do all checks above pass? Then look at blocks that were split and merged several times."

    @classmethod
    def scripts(cls, rng: random.Random) -> list[Script]:
        script, alive, made = [], [], itertools.count()
        for _ in range(300):
            if alive and rng.random() < 0.45:
                script += _release(alive.pop(rng.randrange(len(alive))))
            else:
                script += _allocate(
                    rng.choice((rng.randint(1, MiB), rng.randint(1, 10 * MiB), rng.randint(1, 40 * MiB)))
                )
                alive.append(next(made))
        return [script]


SMALL_ALLOCATOR = (
    RoundsUp,
    AsksForSegments,
    KeepsPoolsApart,
    TakesTheBestFit,
    Splits,
    Merges,
    KeepsWhatIsFreed,
    TriesAgain,
    RefusesCleanly,
    HoldsInALongRun,
)
