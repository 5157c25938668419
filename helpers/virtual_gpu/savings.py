"""By how much the peak would fall if the program were changed: its allocations once more, with other sizes.

A change may lower one moment and leave another as it is, so the peak is looked for again in the whole timeline. Where
the program ran out of memory, the timeline ends there, with the request that failed.
"""

from collections import Counter
from itertools import pairwise

import numpy as np

from ..planner.allocator import CachingAllocator
from . import cures as changes
from .batch import grows_with_batch, parameter_sizes
from .cures import Cure, notable
from .fits import replay
from .ledger import BACKWARD, FORWARD, UPDATE, Ledger
from .owners import category_of

_ENDLESS = 2**60  # bytes of a GPU on which everything fits
_STATES = 3  # copies of the weights that an optimizer keeps at most, in their dtype


class Timeline:
    """The events of one GPU.

    Args:
        ledger: of the program.
        index: of the GPU.
        batch: of the program; None where it is not known.
    """

    def __init__(self, ledger: Ledger, index: int, batch: int | None) -> None:
        self._ledger, self._index, self._batch = ledger, index, batch
        refused = ledger.refusals[-1] if ledger.ran_out else None
        self.ends_early = refused is not None
        self._last = len(ledger.events) if refused is None else refused.place
        self._asked = 0 if refused is None else refused.nbytes
        self._places = [place for place in range(self._last) if ledger.events[place].index == index]
        records = [ledger.events[place] for place in self._places]
        born = [record.born == place for record, place in zip(records, self._places, strict=True)]
        self._born, self._item = np.array(born, bool), np.array([record.item for record in records])
        self._bytes = np.array([record.nbytes for record in records]) * np.where(self._born, 1, -1)
        self._category = np.array([category_of(record) for record in records])
        self._updates = np.array([record.phase == UPDATE for record in records], bool)
        sizes = parameter_sizes(ledger)
        self._grows = np.array([grows_with_batch(record, sizes) for record in records], bool)
        self._now = np.array([r.phase if here else r.ended for r, here in zip(records, born, strict=True)])
        self.peak = self._peak(1.0)

    def cures(self, reserved: int | None, bf16: bool) -> list[Cure]:
        """Return the changes that lower the peak by a hundredth of it, the easiest first.

        Args:
            reserved: the reserved peak, which expandable segments would lower; None where segments can grow already.
            bf16: whether the GPU computes in BF16. Without, attention in BF16 would keep all scores.
        """
        found = [
            Cure(changes.EXPANDABLE, 0 if reserved is None else reserved - self._reserved_if_expandable()),
            self._cure(changes.FUSED, self._fused(), up_to=False),
            self._half_batch(),
            self._cure(self._checkpointing_in_words, self._checkpointing(), up_to=True),
            self._cure(changes.EIGHT_BITS, self._eight_bits(), up_to=False),
            self._in_backward(),
            self._cure(changes.LORA, self._lora(), up_to=True),
            *([self._bf16()] if bf16 else []),
        ]
        return notable(found, self.peak)

    def _peak(self, factors: np.ndarray | float, extra: np.ndarray | float = 0.0) -> int:
        """Return the peak with all sizes times `factors`, and `extra` bytes held after each event."""
        if not len(self._bytes):
            return self._asked
        held = (self._bytes * factors).cumsum() + extra
        return int(max(held.max(), held[-1] + self._asked))

    def _cure(self, change: str, factors: np.ndarray | float, up_to: bool, extra: np.ndarray | float = 0.0) -> Cure:
        return Cure(change, self.peak - self._peak(factors, extra), up_to or self.ends_early)

    def _of(self, *categories: str) -> np.ndarray:
        return np.isin(self._category, categories)

    @property
    def _update_temporaries(self) -> np.ndarray:
        return self._of("temporaries") & self._updates

    def _held(self, which: np.ndarray) -> np.ndarray:
        return (self._bytes * which).cumsum()

    def _fused(self) -> np.ndarray | float:
        return np.where(self._update_temporaries, 0.0, 1.0) if self._ledger.fusable else 1.0

    def _half_batch(self) -> Cure:
        """Return the change to half the batch: in its second half, all gradients of the first are there."""
        batch = self._batch or 1
        factors = np.where(self._grows, (batch + 1) // 2 / batch, 1.0)
        if self._ledger.updates_in_backward:
            return self._cure(changes.HALF, factors, up_to=False)
        gradients = self._of("gradients")
        held = self._held(gradients)
        added = np.where(gradients & self._born, self._bytes, 0)  # until it has been added to the first half's
        passes = np.isin(self._now, (FORWARD, BACKWARD))
        extra = np.where(passes, held.max(initial=0) - held + added, 0)
        return self._cure(changes.ACCUMULATED, factors, up_to=False, extra=extra)

    @property
    def _checkpointing_in_words(self) -> str:
        return changes.TURNED_ON if self._ledger.turned_on_in_eval else changes.CHECKPOINTING

    def _checkpointing(self) -> np.ndarray | float:
        saved = self._of("activations")
        return 1.0 if self._ledger.checkpoints else np.where(saved, changes.CHECKPOINTED, 1.0)

    def _eight_bits(self) -> np.ndarray:
        shrinks = self._of("optimizer state") & (self._item > 1)
        return np.where(shrinks, changes.EIGHT / np.maximum(self._item, 1), 1.0)

    def _in_backward(self) -> Cure:
        """Return the change to a step for each weight; the largest gradient's is there, with its temporaries."""
        gradients = self._of("gradients")
        if self._ledger.updates_in_backward or self._accumulates():
            return Cure(changes.IN_BACKWARD, 0)
        largest = (self._bytes * (gradients & self._born)).max(initial=0)
        factors = np.where(gradients | self._update_temporaries, 0.0, 1.0)
        extra = np.where(self._now == BACKWARD, largest * (2 if self._update_temporaries.any() else 1), 0)
        return self._cure(changes.IN_BACKWARD, factors, up_to=False, extra=extra)

    def _accumulates(self) -> bool:
        """Say whether a step has several backward passes, whose gradients are added."""
        ends = [*self._ledger.marks, len(self._ledger.events)]
        steps = np.searchsorted(ends, self._places, side="right")
        backward = (self._now == BACKWARD) & self._born
        passes = np.flatnonzero(backward | ((self._now == FORWARD) & self._born))
        starts = (one for before, one in pairwise(passes) if backward[one] and not backward[before])
        counted = np.bincount([steps[one] for one in starts], minlength=1)
        return bool((counted > 1).any())

    def _lora(self) -> np.ndarray | float:
        if self._ledger.mostly_frozen:
            return 1.0
        return np.where(self._of("optimizer state", "gradients") | self._update_temporaries, 0.0, 1.0)

    def _bf16(self) -> Cure:
        """Return the change to 2 bytes per weight: gradients, state and, without autocast, activations follow."""
        wide = self._item > 2
        weights, state = self._of("parameters") & wide, self._of("optimizer state") & wide
        known = self._held(weights).max(initial=0)
        if not known:
            return Cure(changes.BF16, 0)
        if self._held(state).max(initial=0) > _STATES * known:  # it is wide whatever the weights are
            state = np.zeros_like(state)
        shrinks = weights | state | (self._of("gradients") & wide)
        factors = np.where(shrinks, 2 / np.maximum(self._item, 1), 1.0)
        if known > self._held(self._of("parameters")).max() / 2:
            factors = np.where(self._update_temporaries, 0.5, factors)
        if self._ledger.copies_in_bf16:
            factors = np.where(self._of("weight copies"), 0.0, factors)
        computes_wide = self._computes_in_fp32()
        if computes_wide:
            follows = self._of("activations", "recomputed activations", "temporaries") & ~self._updates
            factors = np.where(follows, 0.5, factors)
        return self._cure(changes.BF16, factors, up_to=computes_wide)

    def _computes_in_fp32(self) -> bool:
        """Say whether most of the program's matmuls and convolutions have FP32 inputs."""
        flops: Counter[str] = Counter()
        for works in self._ledger.works:
            for (work, *_), count in works.items():
                flops[work.dtype] += work.flops * count
        return flops.total() > 0 and flops["float32"] > flops.total() / 2

    def _reserved_if_expandable(self) -> int:
        allocator = CachingAllocator(_ENDLESS, True)
        replay(self._ledger.events[: self._last], self._index, allocator)
        return allocator.peak_reserved
