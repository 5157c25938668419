"""On which GPUs a program would run: its allocations, played through the allocator of each."""

from collections.abc import Callable, Sequence

from ..planner.allocator import Block, CachingAllocator, OutOfMemory
from ..planner.catalog.gpus import GPUS, Gpu
from ..planner.grades import DOES_NOT_FIT, TIGHT, grade
from ..planner.reserved import reserved_between
from .ledger import Allocation, Ledger


def grade_on(ledger: Ledger, index: int, gpu: Gpu, peaks: tuple[int, int], expandable: bool) -> str:
    """Return the planner's grade of a program on `gpu`; what seems tight is replayed in the GPU's room.

    Args:
        ledger: of the program.
        index: of the GPU on which it ran.
        gpu: in question.
        peaks: allocated and reserved, in bytes.
        expandable: whether segments grow.
    """
    allocated, reserved = peaks
    high = reserved_between(allocated, reserved, gpu.cublas_workspace).high
    said = grade(allocated, high, gpu.room)
    if said != TIGHT:
        return said
    try:
        replay(ledger.events, index, CachingAllocator(gpu.room, expandable))
    except OutOfMemory:
        return DOES_NOT_FIT
    return said


def replay(
    events: Sequence[Allocation],
    index: int,
    allocator: CachingAllocator,
    size: Callable[[Allocation], int] = lambda record: record.nbytes,
) -> None:
    """Play the allocations on one GPU through `allocator`, in order.

    Args:
        events: of a program's ledger, from the first.
        index: of the GPU on which it ran.
        allocator: an empty one.
        size: says how many bytes an allocation asks for.

    Raises:
        OutOfMemory: the allocator has no room.
    """
    blocks: dict[int, Block] = {}
    for place, record in enumerate(events):
        if record.index != index:
            continue
        if record.born == place:
            blocks[place] = allocator.allocate(size(record))
        else:
            allocator.release(blocks.pop(record.born))


def common_gpus(own: Gpu) -> list[Gpu]:
    """Return `own` and the common GPUs of the catalog, by size; one that the catalog does not have comes first."""
    unlisted = [] if own.name in GPUS else [own]
    return unlisted + [gpu for gpu in GPUS.values() if gpu.common or gpu.name == own.name]
