"""The blocks, segments and steps of one GPU in a memory snapshot."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .frames import Frame, category, steps_optimizer, user_line, uses_checkpointing

_PAUSE = 50  # events between two parts of one optimizer step, at most


@dataclass(eq=False)
class Block:
    """One allocation.

    Attributes:
        born, died: places in the trace; -1 for what is older than the trace, and for what is still there.
    """

    address: int
    nbytes: int
    frames: list[Frame]
    born: int = -1
    died: int = -1

    @cached_property
    def line(self) -> str:
        """The line of the program that made it."""
        return user_line(self.frames)


@dataclass
class GpuSnapshot:
    """One GPU of a snapshot.

    Attributes:
        segments: as the allocator has them.
        blocks: all that the trace or the segments know of.
        refused: (bytes, free bytes of the GPU, frames) of the last allocation that failed; None where none did.
        ends: places in the trace at which optimizer steps ended.
    """

    segments: list[dict[str, Any]]
    blocks: list[Block] = field(default_factory=list)
    refused: tuple[int, int, list[Frame]] | None = None
    ends: list[int] = field(default_factory=list)

    @property
    def alive(self) -> list[Block]:
        """The blocks that are there at the end."""
        return [block for block in self.blocks if block.died < 0]

    @property
    def reserved(self) -> int:
        """Bytes of all segments; without any (a snapshot of the trace alone), those that are allocated."""
        return sum(segment["total_size"] for segment in self.segments) or self.allocated

    @property
    def allocated(self) -> int:
        """Bytes of the blocks that are there at the end."""
        return sum(block.nbytes for block in self.alive)

    @property
    def largest_gap(self) -> int:
        """The largest free piece in any segment."""
        return max((piece["size"] for piece in self._pieces() if piece["state"] == "inactive"), default=0)

    @property
    def expandable(self) -> bool:
        """Whether segments can grow."""
        return any(segment.get("is_expandable") for segment in self.segments)

    @property
    def checkpoints(self) -> bool:
        """Whether activation checkpointing made any block."""
        return any(uses_checkpointing(block.frames) for block in self.blocks)

    def _pieces(self) -> list[dict[str, Any]]:
        return [piece for segment in self.segments for piece in segment.get("blocks", ())]

    def survives(self, block: Block) -> bool:
        """Say whether a block outlives the step in which it was made."""
        if block.died < 0:
            return bool(not self.ends or block.born < self.ends[-1])
        return any(block.born < end < block.died for end in self.ends)

    def category(self, block: Block) -> str:
        """Return what a block is for."""
        return category(block.frames, self.survives(block))

    def held(self) -> tuple[Counter[str], Counter[str]]:
        """Return the bytes at the end by category, and by line of the program."""
        categories: Counter[str] = Counter()
        lines: Counter[str] = Counter()
        for block in self.alive:
            categories[self.category(block)] += block.nbytes
            lines[block.line] += block.nbytes
        return categories, lines


def gpus_of(snapshot: dict[str, Any]) -> dict[int, GpuSnapshot]:
    """Return the GPUs of a snapshot that have memory or a trace, by number."""
    traces = snapshot.get("device_traces") or []
    numbers = {segment.get("device", 0) for segment in snapshot["segments"]}
    numbers |= {number for number, trace in enumerate(traces) if trace}
    return {
        number: _one(
            [segment for segment in snapshot["segments"] if segment.get("device", 0) == number],
            traces[number] if number < len(traces) else [],
        )
        for number in sorted(numbers)
    }


def _one(segments: list[dict[str, Any]], trace: list[dict[str, Any]]) -> GpuSnapshot:
    gpu = GpuSnapshot(segments)
    here: dict[int, Block] = {}
    last = None
    for place, event in enumerate(trace):
        action, address = event["action"], event.get("addr", 0)
        frames = event.get("frames") or []
        if action == "alloc":
            here[address] = Block(address, event["size"], frames, place)
            gpu.blocks.append(here[address])
        elif action == "free_completed" and address in here:
            here.pop(address).died = place
        elif action == "oom":
            gpu.refused = event["size"], event.get("device_free", 0), frames
        if steps_optimizer(frames):
            if last is not None and place - last > _PAUSE:
                gpu.ends.append(last)
            last = place
    if last is not None:
        gpu.ends.append(last)
    for segment in segments:
        address = segment.get("address", 0)
        for piece in segment.get("blocks", ()):
            address = piece.get("address", address)
            if piece["state"] == "active_allocated" and address not in here:
                history = piece.get("history") or [{}]
                gpu.blocks.append(Block(address, piece["size"], piece.get("frames") or history[0].get("frames") or []))
            address += piece["size"]
    return gpu
