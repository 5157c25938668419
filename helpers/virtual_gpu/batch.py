"""The largest batch that fits: what grows with the batch, from one run.

The batch is the first dimension that the tensors have which a step brings to the GPU. Inputs, activations and what the
passes make on the way grow with it; parameters, gradients, optimizer state and temporaries of a parameter's size do
not. The peak may be elsewhere with another batch, so every moment of the program counts.
"""

from collections import Counter

import numpy as np

from ..planner.catalog.gpus import Gpu
from ..planner.plan import ABOVE
from .dispatch import NO_BATCH
from .ledger import FORWARD, Allocation, Ledger
from .owners import category_of

_GROWS = {"activations", "recomputed activations", "temporaries", "kernel workspace"}
_SHARE = 0.6  # of the bytes that arrive are of tensors with the batch as their first dimension, at least
_MOST = 2**20
_PIECES = 1.05  # reserved over allocated in large programs; the segments of small ones say nothing of large batches


def batch_of(ledger: Ledger) -> int | None:
    """Return the batch of the program; None where it cannot be recognized."""
    rows = ledger.arrivals or ledger.early_arrivals
    if not rows:
        return None
    size, nbytes = rows.most_common(1)[0]
    return size if nbytes >= _SHARE * rows.total() and size != NO_BATCH and size > 0 else None


def largest_batches(ledger: Ledger, index: int, gpus: list[Gpu], overhead: float) -> dict[str, int]:
    """Return the largest batch for each GPU, 0 where none fits; nothing where the batch cannot be recognized.

    Args:
        ledger: of the program.
        index: of the GPU on which it ran.
        gpus: in question.
        overhead: by which factor the reserved peak of the run exceeds the allocated one.
    """
    batch = batch_of(ledger)
    if batch is None or not ledger.marks:
        return {}
    overhead = min(overhead, _PIECES) * (1 + ABOVE)
    fixed, grows = _held(ledger, index)
    return {gpu.name: _largest(fixed * overhead, grows * overhead / batch, gpu.room) for gpu in gpus}


def _largest(fixed: np.ndarray, each: np.ndarray, room: int) -> int:
    """Return the largest number n with fixed + n * each <= room everywhere."""
    if (fixed > room).any():
        return 0
    growing = each > 0
    if not growing.any():
        return _MOST
    return min(_MOST, int(((room - fixed[growing]) / each[growing]).min()))


def _held(ledger: Ledger, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes that do not grow with the batch and those that do, after each event from the first step on."""
    sizes = parameter_sizes(ledger)
    fixed, grows = np.zeros(len(ledger.events)), np.zeros(len(ledger.events))
    for place, record in enumerate(ledger.events):
        if record.index == index:
            change = record.nbytes if record.born == place else -record.nbytes
            (grows if grows_with_batch(record, sizes) else fixed)[place] = change
    return fixed.cumsum(), grows.cumsum()


def grows_with_batch(record: Allocation, sizes: set[int]) -> bool:
    """Say whether an allocation grows with the batch.

    Args:
        record: of the allocation.
        sizes: bytes of the blocks of parameters, which temporaries of the backward pass have, too.
    """
    category = category_of(record)
    if category in _GROWS:
        return record.phase != "optimizer step" and (record.phase == FORWARD or record.nbytes not in sizes)
    return category == "inputs and other" and record.phase == FORWARD


def parameter_sizes(ledger: Ledger) -> set[int]:
    """Return the bytes of the blocks that hold parameters or gradients."""
    counted: Counter[int] = Counter()
    for record in ledger.events:
        if record.category in ("parameters", "gradients"):
            counted[record.nbytes] += 1
    return set(counted)
