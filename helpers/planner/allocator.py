"""A small model of CUDA's caching allocator: why `nvidia-smi` shows more than your tensors hold.

`cudaMalloc` is slow, so PyTorch asks for large **segments**, cuts **blocks** out of them, and keeps what is freed for
the next request. Reserved memory is the sum of the segments; allocated memory is the sum of the blocks in use. What
lies between is cache, or holes too small for any request: fragmentation.

The rules and sizes are those of `c10/cuda/CUDACachingAllocator.cpp`, without streams and without options beyond
expandable segments.
"""

import bisect
from dataclasses import dataclass

from ..core.units import MiB, human_bytes

ROUNDING = 512  # every request is rounded up to a multiple of this
SMALL = MiB  # requests up to this live in the small pool
SMALL_SEGMENT = 2 * MiB
LARGE_SEGMENT = 20 * MiB  # for requests up to LARGE
LARGE = 10 * MiB  # larger ones get a segment of their own, rounded up to 2 MiB
SEGMENT_ROUNDING = 2 * MiB


class OutOfMemory(RuntimeError):
    """A request that does not fit, even after the cache was emptied."""


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment, in use or free. Neighbors are linked, so that free ones can merge."""

    address: int
    size: int
    segment: int
    small: bool
    used: bool = False
    before: "Block | None" = None
    after: "Block | None" = None


class CachingAllocator:
    """Plays a sequence of requests and releases.

    Args:
        capacity: bytes of the GPU; None for no limit.
        expandable: use expandable segments (`PYTORCH_ALLOC_CONF=expandable_segments:True`): one segment a pool
            that grows at its end.

    Attributes:
        allocated, reserved: bytes in blocks in use, and in segments, at this moment.
        peak_allocated, peak_reserved: their highest values so far.
        retries: how often it emptied its cache for want of room (PyTorch's `num_alloc_retries`).
    """

    def __init__(self, capacity: int | None = None, expandable: bool = False) -> None:
        self.capacity, self.expandable = capacity, expandable
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = self.retries = 0
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}  # (size, address, block), sorted
        self._last: dict[bool, Block] = {}  # the end of each pool's expandable segment
        self._next_address = 0

    def allocate(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes`.

        Raises:
            OutOfMemory: `capacity` is reached.
        """
        size = max(ROUNDING, -(-nbytes // ROUNDING) * ROUNDING)
        small = size <= SMALL
        block = self._best_fit(size, small) or self._grow(size, small)
        rest = block.size - size
        if rest >= ROUNDING if small or self.expandable else rest > SMALL:
            tail = Block(block.address + size, rest, block.segment, small, False, block, block.after)
            if block.after:
                block.after.before = tail
            if self._last.get(small) is block:
                self._last[small] = tail
            block.after, block.size = tail, size
            self._offer(tail)
        block.used = True
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def release(self, block: Block) -> None:
        """Free a block; it merges with free neighbors and stays reserved."""
        block.used = False
        self.allocated -= block.size
        for other in (block.before, block.after):
            if other and not other.used:
                self._withdraw(other)
                left, right = (other, block) if other.address < block.address else (block, other)
                left.size += right.size
                left.after = right.after
                if right.after:
                    right.after.before = left
                if self._last.get(block.small) is right:
                    self._last[block.small] = left
                block = left
        self._offer(block)

    def empty_cache(self) -> None:
        """Return segments without a block in use to the GPU, as `torch.cuda.empty_cache` does."""
        for small in (True, False):
            for _, _, block in list(self._free[small]):
                whole = block.before is None and block.after is None
                if whole or (self.expandable and block.after is None):
                    self._withdraw(block)
                    self.reserved -= block.size
                    if block.before:
                        block.before.after = None
                    if self.expandable:
                        self._last.pop(small)
                        if block.before:
                            self._last[small] = block.before

    def _offer(self, block: Block) -> None:
        bisect.insort(self._free[block.small], (block.size, block.address, block))

    def _withdraw(self, block: Block) -> None:
        free = self._free[block.small]
        del free[bisect.bisect_left(free, (block.size, block.address))]

    def _best_fit(self, size: int, small: bool) -> Block | None:
        free = self._free[small]
        at = bisect.bisect_left(free, (size, -1))
        if at + 1 < len(free) and free[at][2] is self._last.get(small):
            at += 1  # the end of an expandable segment counts with all that it can grow by: any other block fits better
        return free.pop(at)[2] if at < len(free) else None

    def _grow(self, size: int, small: bool) -> Block:
        """Ask the GPU for more; empty the cache and ask again when it refuses."""
        for attempt in ("first", "after emptying the cache"):
            last = self._last.get(small)
            spare = last.size if self.expandable and last and not last.used else 0
            if self.expandable:
                page = SMALL_SEGMENT if small else LARGE_SEGMENT
                segment = -(-(size - spare) // page) * page
            elif small:
                segment = SMALL_SEGMENT
            elif size < LARGE:
                segment = LARGE_SEGMENT
            else:
                segment = -(-size // SEGMENT_ROUNDING) * SEGMENT_ROUNDING
            if self.capacity is None or self.reserved + segment <= self.capacity:
                break
            if attempt != "first":
                raise OutOfMemory(
                    f"{human_bytes(size)} wanted; {self.allocated / MiB:,.0f} MiB allocated, "
                    f"{self.reserved / MiB:,.0f} of {self.capacity / MiB:,.0f} MiB reserved"
                )
            self.retries += 1
            self.empty_cache()
        self.reserved += segment
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        if self.expandable and last:
            if spare:
                self._withdraw(last)
                last.size += segment
                return last
            block = Block(last.address + last.size, segment, last.segment, small, False, last)
            last.after = block
        else:
            # Pools far apart when they can grow, so that addresses never meet.
            address = (0 if small else 1 << 50) if self.expandable else self._next_address
            self._next_address += segment
            block = Block(address, segment, address, small)
        if self.expandable:
            self._last[small] = block
        return block
