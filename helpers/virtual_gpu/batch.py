"""The largest batch that fits: what grows with the batch, from one run.

The batch is the first dimension that the tensors have which a step brings to the GPU. Inputs, activations and what the
passes make on the way grow with it; parameters, gradients, optimizer state and temporaries of a parameter's size do
not. The peak may be elsewhere with another batch, so every moment of the program counts.
"""

from collections import Counter

import numpy as np

from ..planner.allocator import CachingAllocator
from ..planner.catalog.gpus import Gpu
from ..planner.reserved import ABOVE
from .dispatch import NO_BATCH
from .fits import replay
from .ledger import BACKWARD, FORWARD, Allocation, Ledger
from .owners import category_of

_GROWS = {"activations", "recomputed activations", "temporaries", "kernel workspace"}
_SHARE = 0.6  # of the bytes that arrive are of tensors with the batch as their first dimension, at least
MOST = 2**20  # larger ones are not looked for
_ROUNDED = 2**21  # bytes by which a block may exceed what was asked for
PIECES = 1.05  # reserved over allocated in large programs; the segments of small ones say little about large batches


def batch_of(ledger: Ledger) -> int | None:
    """Return the batch of the program; None where it cannot be recognized."""
    other = ledger.given_without_graph - ledger.given  # batches of an evaluation, or states in which a policy acts
    for arrivals in (ledger.arrivals, ledger.early_arrivals, ledger.arrivals_without_graph):
        rows = Counter({size: nbytes for size, nbytes in arrivals.items() if size not in other})
        if rows:
            break
    else:
        return None
    size, nbytes = rows.most_common(1)[0]
    return size if nbytes >= _SHARE * rows.total() and size != NO_BATCH and size > 0 else None


def largest_batches(ledger: Ledger, index: int, gpus: list[Gpu], overhead: float) -> dict[str, int]:
    """Return the largest batch for each GPU, 0 where none fits; nothing where the batch cannot be recognized.

    Args:
        ledger: of the program.
        index: of the GPU on which it ran.
        gpus: in question.
        overhead: by which factor the reserved peak exceeds the allocated one.
    """
    batch = batch_of(ledger)
    if batch is None or not ledger.marks:
        return {}
    overhead *= 1 + ABOVE
    fixed, grows = _held(ledger, index)
    return {gpu.name: _largest(fixed * overhead, grows * overhead / batch, gpu.room) for gpu in gpus}


def pieces_at(ledger: Ledger, index: int, batch: int, expandable: bool) -> float:
    """Return the ratio of the reserved to the allocated peak at another batch, from a replay in its sizes.

    Args:
        ledger: of the program; its batch is known.
        index: of the GPU on which it ran.
        batch: in question, at least 1.
        expandable: whether segments grow.
    """
    factor, sizes = batch / batch_of(ledger), parameter_sizes(ledger)
    allocator = CachingAllocator(expandable=expandable)

    def size(record: Allocation) -> int:
        return int(record.nbytes * factor) if grows_with_batch(record, sizes) else record.nbytes

    replay(ledger.events, index, allocator, size)
    return allocator.peak_reserved / max(1, allocator.peak_allocated)


def batch_past_refusal(ledger: Ledger, room: int) -> int | None:
    """Return the largest batch that fits up to the request that failed last, that included; None where unknown.

    The rest of the step is taken to be as in the step before, with what has stayed since. In the first step it is not
    known, and may need more.

    Args:
        ledger: of a program that ran out of memory.
        room: bytes that the GPU has for the allocator.
    """
    batch = batch_at_refusal(ledger)
    if batch is None or ledger.refused_phase not in (FORWARD, BACKWARD):
        return None
    place, index, asked, *_ = ledger.refusals[-1]
    fixed, grows = _held(ledger, index, place)
    is_gradient = any(0 <= size - asked < _ROUNDED for size in parameter_sizes(ledger))
    request = np.zeros(2)
    request[int(ledger.refused_phase == FORWARD or not is_gradient)] = asked
    held = [(fixed, grows), (fixed[-1:] + request[0], grows[-1:] + request[1])]
    if ledger.marks:
        begin, end = ([0, *ledger.marks])[-2:]
        held.append((fixed[begin:end] + _came_to_stay(ledger, begin, end), grows[begin:end]))
    overhead = 1 + ABOVE
    each = np.concatenate([part for _, part in held]) * overhead / batch
    return min(batch - 1, _largest(np.concatenate([part for part, _ in held]) * overhead, each, room))


def _came_to_stay(ledger: Ledger, begin: int, end: int) -> np.ndarray:
    """Return the bytes that come after each event of a step and are still there at the last refusal."""
    place, index, *_ = ledger.refusals[-1]
    stay = np.zeros(end - begin)
    for at in range(begin, end):
        record = ledger.events[at]
        if record.index == index and record.born == at and not 0 <= record.died < place:
            stay[at - begin] = 0 if category_of(record) in _GROWS else record.nbytes
    return stay.sum() - stay.cumsum()


def batch_at_refusal(ledger: Ledger) -> int | None:
    """Return the batch of a program that ran out of memory, perhaps in its first forward pass; None where unknown."""
    return batch_of(ledger) or (None if ledger.marks else max(0, ledger.rows_before_forward) or None)


def _largest(fixed: np.ndarray, each: np.ndarray, room: int) -> int:
    """Return the largest number n with fixed + n * each <= room everywhere."""
    if (fixed > room).any():
        return 0
    growing = each > 0
    if not growing.any():
        return MOST
    return min(MOST, int(((room - fixed[growing]) / each[growing]).min()))


def _held(ledger: Ledger, index: int, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes that do not grow with the batch and those that do, after each event before the `last`."""
    sizes = parameter_sizes(ledger)
    events = ledger.events[:last]
    fixed, grows = np.zeros(len(events)), np.zeros(len(events))
    for place, record in enumerate(events):
        if record.index == index:
            change = record.nbytes if record.born == place else -record.nbytes
            (grows if grows_with_batch(record, sizes) else fixed)[place] = change
    return fixed.cumsum(), grows.cumsum()


def grows_with_batch(record: Allocation, sizes: set[int]) -> bool:
    """Say whether an allocation grows with the batch.

    Args:
        record: of the allocation.
        sizes: bytes of the blocks of trained parameters, which temporaries of the backward pass have, too.
    """
    category = category_of(record)
    if category in _GROWS:
        return record.phase != "optimizer step" and (record.phase == FORWARD or record.nbytes not in sizes)
    return category == "inputs and other" and record.phase == FORWARD


def parameter_sizes(ledger: Ledger) -> set[int]:
    """Return the bytes of the blocks that hold trained parameters or gradients."""
    counted: Counter[int] = Counter()
    for record in ledger.events:
        if record.category in ("parameters", "gradients") and not record.frozen:
            counted[record.nbytes] += 1
    return set(counted)
