"""Check of a reader of memory snapshots: what was allocated from a moment on, and never freed."""

import copy
import random
from collections.abc import Callable
from typing import Any

from ..base import Check, Evidence

Event = dict[str, Any]
StillThere = Callable[[list[Event], int], dict[str, int]]
HOME, TORCH = "/home/me/train.py", "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py"
LINES = (12, 15, 40, 61)  # of the program, where blocks are allocated and freed
METERS = ("aten.mm.default", "aten.addmm.default", "aten.add.Tensor", "aten.gelu.default")  # by the line above
MAIN = {"name": "main", "filename": HOME, "line": 90}


def _python(line: int) -> list[Event]:
    """Return the frames of `stacks="python"`: lines of PyTorch, the program's own line, its caller."""
    own = {"name": "forward" if line < 20 else "step", "filename": HOME, "line": line}
    return [{"name": "forward", "filename": TORCH, "line": 134}, own, MAIN]


def _all(line: int) -> list[Event]:
    """Return the frames of `stacks="all"`, as CUDA's allocator records them: C++ first."""
    gather = {"name": "torch::CapturedTraceback::gather(bool, bool, bool)", "filename": "??", "line": 0}
    kernel = {"name": "at::empty_cuda", "filename": "/pytorch/aten/src/ATen/cuda/EmptyTensor.cpp", "line": 111}
    return [{"name": "unwind::unwind()", "filename": "??", "line": 0}, gather, kernel, *_python(line)]


def _library(line: int) -> list[Event]:
    """Return frames of which the first one outside of PyTorch is a library's, in a folder with a similar name."""
    other = {"name": "forward", "filename": "/venv/lib/python3.12/site-packages/torchtune/modules.py", "line": line}
    return [{"name": "forward", "filename": TORCH, "line": 134}, other, MAIN]


def _meters(line: int) -> list[Event]:
    """Return the frame of the meter's own files: an operation, and no file."""
    return [{"name": METERS[LINES.index(line)], "filename": "activations; forward head (Linear)", "line": 0}]


def _none(line: int) -> list[Event]:
    """Return the frames of a block of the backward pass under `stacks="python"`: its thread runs no Python."""
    return []


class _MadeTrace:
    """The trace of an allocator that returns the same few addresses again and again."""

    def __init__(self, seed: int, frames: Callable[[int], list[Event]] = _python) -> None:
        self.rng, self.frames = random.Random(seed), frames
        self.now, self.events, self.free = 1_000, [], [(n + 1) << 20 for n in range(40)]

    def write(self, action: str, address: int, size: int, line: int) -> None:
        """Append an event; a microsecond or more passes."""
        self.now += self.rng.randint(1, 9)
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.now}
        self.events.append(event | {"frames": self.frames(line)})

    def allocate(self, line: int) -> tuple[int, int, int]:
        """Allocate a block at one of the free addresses."""
        address = self.free.pop(self.rng.randrange(len(self.free)))
        block = address, 512 * self.rng.randint(1, 4_000), line
        self.write("alloc", *block)
        return block

    def release(self, block: tuple[int, int, int]) -> None:
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
            return f"{case}: for the place {line!r} you return {said}; expected {should}."
    return None


class _Reads(Check):
    """Compares the answers for synthetic traces."""

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return next((wrong for case in expected if (wrong := _wrong(case, seen[case], expected[case]))), None)


class AddsUpWhatIsLeft(_Reads):
    """The dictionary has the bytes of all blocks that were never freed, by place, and no other places."""

    hint = (
        "Go through the trace in order, and keep a dictionary of the blocks that are alive.\n"
        "`alloc` adds a block under its address; `free_completed` removes it. What is left at the end?\n"
        "Blocks from the same place add up."
    )

    @staticmethod
    def probe(seed: int, still_there: StillThere) -> Evidence:
        seen: Evidence = {}
        for case, keep in (("nothing left", 0), ("one block left", 1), ("many left", 9)):
            made = _MadeTrace(seed + keep)
            made.step(keep)
            seen[case] = _said(still_there, made.events, 0)
        return seen


class NamesYourOwnLine(_Reads):
    """The place is the first Python frame outside of PyTorch, else the name of the first frame, else "no frames"."""

    hint = (
        "Print the frames of one event of each kind. C++ frames come first, then PyTorch's Python, then yours.\n"
        "Take the first frame whose filename ends in `.py` and does not contain `/torch/`: filename, colon, line.\n"
        "What does your loop do with an event in which no frame is yours, and with one that has no frames?"
    )

    @staticmethod
    def probe(seed: int, still_there: StillThere) -> Evidence:
        forms = {'CUDA, stacks="all"': _all, 'CUDA, stacks="python"': _python, "the meter's file": _meters}
        forms |= {"CUDA, a block of the backward pass": _none, "CUDA, a block of another library": _library}
        seen: Evidence = {}
        for case, frames in forms.items():
            made = _MadeTrace(seed + 9, frames)
            made.step(9)
            seen[case] = _said(still_there, made.events, 0)
        return seen


class HandlesReusedAddresses(_Reads):
    """Addresses are reused: each free ends the block that is at that address at the time."""

    hint = "Does your dictionary know *which* block at an address was freed? Go through the events in order."

    @staticmethod
    def probe(seed: int, still_there: StillThere) -> Evidence:
        made = _MadeTrace(seed + 1)
        made.free = made.free[:14]
        for _ in range(6):
            made.step(0)
        made.step(5)
        return {"six steps on 14 addresses": _said(still_there, made.events, 0)}


class CountsFromSince(_Reads):
    """Blocks that were allocated before `since` do not count, whether they are freed later or not."""

    hint = (
        "Weights are older than the step you are looking at.\n"
        "Compare `time_us` of the event that *allocated* the block with `since`: at or after."
    )

    @staticmethod
    def probe(seed: int, still_there: StillThere) -> Evidence:
        made = _MadeTrace(seed + 2)
        made.step(4)
        older = made.allocate(12)
        made.allocate(12)  # and stays: the block at the very moment
        since = made.now
        made.step(4)
        made.release(older)
        made.write("free_completed", 1 << 41, 4096, 61)  # allocated before the trace began
        return {"weights before, a step after": _said(still_there, made.events, since)}


class WaitsUntilItIsFree(_Reads):
    """A block is freed at `free_completed`, not at `free_requested`; all other actions are ignored."""

    hint = (
        "Another stream may still use a block whose release was requested.\n"
        "Use `alloc` and `free_completed` only: `segment_alloc` is memory that the allocator requested from CUDA."
    )

    @staticmethod
    def probe(seed: int, still_there: StillThere) -> Evidence:
        made = _MadeTrace(seed + 3)
        made.write("segment_alloc", 1 << 40, 20 << 20, 12)
        made.step(3)
        block = made.allocate(40)
        made.write("free_requested", *block)
        made.write("segment_free", 1 << 40, 20 << 20, 12)
        made.events.append({"action": "oom", "size": 1 << 30, "stream": 0, "time_us": made.now + 1, "frames": []})
        return {"requested, not completed": _said(still_there, made.events, 0)}


class ChangesNoTrace(Check):
    """The function does not change the trace."""

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
        return None if seen["same"] else "Your function changed the trace. Remove blocks from a dictionary of your own."


SNAPSHOT = (
    AddsUpWhatIsLeft,
    NamesYourOwnLine,
    HandlesReusedAddresses,
    CountsFromSince,
    WaitsUntilItIsFree,
    ChangesNoTrace,
)
