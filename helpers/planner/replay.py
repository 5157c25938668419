"""Play the blocks of a simulation through a model of CUDA's allocator."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..meter.operation import Op
from .allocator import CachingAllocator

if TYPE_CHECKING:  # the module imports PyTorch, which takes seconds
    from ..meter.count import Block


@dataclass
class Replay:
    """What the allocator did.

    Attributes:
        peak_allocated, peak_reserved: bytes.
        at_peak: the allocated peak by category, in bytes.
        op: the operation that reached it.
        peaks: phase -> (its peak in bytes, the operation that reached it).
    """

    peak_allocated: int
    at_peak: dict[str, int]
    op: Op
    peak_reserved: int
    peaks: dict[str, tuple[int, str]]


def in_order(blocks: Sequence["Block"]) -> list[tuple[bool, "Block"]]:
    """Return (whether it ends, the block) for both moments of each block, in order."""
    moments = [(b.start, False, b) for b in blocks] + [(b.end, True, b) for b in blocks if b.end is not None]
    moments.sort(key=lambda moment: moment[:2])
    return [moment[1:] for moment in moments]


def replay(blocks: Sequence["Block"], expandable: bool, capacity: int | None = None) -> Replay:
    """Play the life of all `blocks` through CUDA's allocator; sizes are those of the allocator's blocks.

    Args:
        blocks: with the times of their first and last moment.
        expandable: use expandable segments.
        capacity: bytes of the GPU; None for no limit.

    Raises:
        OutOfMemory: the blocks do not fit into `capacity`.
    """
    allocator = CachingAllocator(capacity, expandable)
    allocated = {}  # id of a block -> the allocator's block
    held: Counter = Counter()
    result = Replay(0, {}, Op(0, "", "", ""), 0, {})
    for ends, block in in_order(blocks):
        if ends:
            memory = allocated.pop(id(block))
            held[block.category] -= memory.size
            allocator.release(memory)
            continue
        memory = allocated[id(block)] = allocator.allocate(block.nbytes)
        held[block.category] += memory.size
        phase = block.op.phase.partition(" (")[0]
        if allocator.allocated > result.peaks.get(phase, (0, ""))[0]:
            result.peaks[phase] = (allocator.allocated, block.op.name)
        if allocator.allocated > result.peak_allocated:
            result.peak_allocated, result.op = allocator.allocated, block.op
            result.at_peak = dict(held)
    result.peak_reserved = allocator.peak_reserved
    return result
