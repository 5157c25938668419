"""What holds more memory after each step: lists of losses with their graphs, caches, hooks that keep tensors."""

import itertools
from collections import Counter
from dataclasses import dataclass

from .snapshot import GpuSnapshot

_LEAST_STEPS, _LEAST_BLOCKS = 3, 3


@dataclass(frozen=True)
class Growth:
    """A line that holds more after each step.

    Attributes:
        line: of the program.
        a_step: bytes that each step adds.
        in_all: bytes that it holds at the end.
        blocks: how many.
    """

    line: str
    a_step: int
    in_all: int
    blocks: int


def growth_of(gpu: GpuSnapshot) -> list[Growth]:
    """Return what grows, the most first.

    With optimizer steps in the trace, a line grows whose bytes rise from each end of a step to the next, the first
    left out: it makes the optimizer's state. Without, a line grows of which blocks remain from all thirds of the trace.
    """
    ends = gpu.ends[1:] if len(gpu.ends) > _LEAST_STEPS else []
    if not ends:
        return _by_thirds(gpu)
    held: list[Counter[str]] = [Counter() for _ in ends]
    for block in gpu.blocks:
        for number, end in enumerate(ends):
            if block.born <= end and (block.died < 0 or block.died > end):
                held[number][block.line] += block.nbytes
    found = []
    for line in held[-1]:
        rises = [after[line] - before[line] for before, after in itertools.pairwise(held)]
        if len(rises) >= _LEAST_STEPS - 1 and all(rise > 0 for rise in rises):
            blocks = sum(block.line == line for block in gpu.alive)
            found.append(Growth(line, sum(rises) // len(rises), held[-1][line], blocks))
    return sorted(found, key=lambda growth: -growth.a_step)


def _by_thirds(gpu: GpuSnapshot) -> list[Growth]:
    last = max((max(block.born, block.died) for block in gpu.blocks), default=0)
    thirds: dict[str, Counter[int]] = {}
    nbytes: Counter[str] = Counter()
    for block in gpu.alive:
        if block.born >= 0 and last:
            thirds.setdefault(block.line, Counter())[min(2, 3 * block.born // (last + 1))] += 1
            nbytes[block.line] += block.nbytes
    made = Counter(block.line for block in gpu.blocks if block.died >= 0)
    return sorted(
        (
            Growth(line, 0, nbytes[line], sum(counts.values()))
            for line, counts in thirds.items()
            if len(counts) == 3 and sum(counts.values()) >= _LEAST_BLOCKS and counts[2] >= counts[0] // 2 and made
        ),
        key=lambda growth: -growth.in_all,
    )
