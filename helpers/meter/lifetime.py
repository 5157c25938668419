"""How long each stretch of memory lived, and whose it was: the count's blocks joined with the allocator's log.

The two are joined by address and time. What the allocator held and no tensor explains is the scratch space of a
kernel: a category of its own, **kernel workspace**. What tensors hold and the log does not know is older than the log,
or did not come from this allocator (a NumPy array).
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .allocator_log import Allocation
from .count import Block
from .operation import NO_OP, Op, op_at

CUDA_ROUNDING = 512  # CUDA's caching allocator rounds every request up to a multiple of this many bytes


@dataclass(slots=True, eq=False)
class Lifetime:
    """A stretch of memory, whose it was, and which operation made it. Times in ns; `end` None: still alive."""

    start: int
    end: int | None
    nbytes: int
    category: str
    op: Op


@dataclass(frozen=True)
class Join:
    """How blocks and allocations become lifetimes.

    Attributes:
        began: when the session began, in ns.
        now: what the log reports after this moment is left out.
        unexplained: the category of allocations that belong to no block.
        rounding: the allocator hands out multiples of this many bytes.
    """

    began: int
    now: int
    unexplained: str
    rounding: int

    def lifetimes(
        self, blocks: Sequence[Block], ops: Sequence[Op], log: Mapping[int, list[Allocation]] | None
    ) -> list[Lifetime]:
        """Return the lifetimes of all memory.

        Args:
            blocks: of the count.
            ops: in order of time; the one at work gives its name to an allocation that no block explains.
            log: allocations by address, each list in order of time; None where there is no log.
        """
        result: list[Lifetime] = []
        claimed: dict[int, Block] = {}  # id of an allocation -> the block that lies in it
        foreign: dict[int, Lifetime] = {}  # address -> memory that the log has not seen being allocated
        for block in blocks:
            allocation = _allocation_at(block, (log or {}).get(block.address, []))
            if allocation:
                claimed[id(allocation)] = block
            elif log is not None or block.start < self.began:
                life, earlier = self._foreign(block), foreign.get(block.address)
                if earlier and (earlier.end is None or earlier.end >= life.start):  # two views of one memory
                    earlier.end = None if None in (earlier.end, life.end) else max(earlier.end, life.end)
                    earlier.nbytes = max(earlier.nbytes, life.nbytes)
                else:
                    foreign[block.address] = life
                    result.append(life)
            else:
                result.append(Lifetime(block.start, block.end, block.nbytes, block.category, block.op))
        for allocation in (a for allocations in (log or {}).values() for a in allocations):
            start, end, nbytes = allocation.start, allocation.end, allocation.nbytes
            block = claimed.get(id(allocation))
            if block:
                end = block.end if end is None else end  # the log misses what is freed while it is being read
                result.append(Lifetime(start, end, nbytes, block.category, block.op))
            elif start <= self.now:
                result.append(Lifetime(start, end, nbytes, self.unexplained, op_at(ops, start)))
        return result

    def _foreign(self, block: Block) -> Lifetime:
        """Return the lifetime of a block that the log has not seen being allocated.

        What was known when the session began (parameters, state) existed from the start. An input that is older, or
        memory from elsewhere, counts from when an operation first touched it.
        """
        nbytes = -(-block.nbytes // self.rounding) * self.rounding
        unclaimed = block.category in ("temporaries", "activations")  # an input stays one when autograd saves it
        category = "inputs and other" if unclaimed else block.category
        start = self.began - 1 if block.start < self.began else block.start
        return Lifetime(start, block.end, nbytes, category, NO_OP)


def _allocation_at(block: Block, allocations: list[Allocation]) -> Allocation | None:
    """Return the one of `allocations`, all at the block's address, that the block lay in when it was first used."""
    last = bisect.bisect_right(allocations, block.start, key=lambda a: a.start) - 1
    if last >= 0 and (allocations[last].end is None or allocations[last].end >= block.start):
        return allocations[last]
    return None
