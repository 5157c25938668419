"""The work of a simulated step: what each operation has to do, and what is left of it where a compiler fuses chains.

In eager mode every operation reads its operands from memory and writes its result there. A compiler makes one kernel of
a chain of pointwise operations, norms and casts between two products. Then a tensor that only the chain itself uses is
never written. Nor is what the chain would keep for the backward pass: that reads what the chain has read, and computes
it again. If eager mode has freed that by then, the compiler keeps what takes the fewest bytes: what the chain has read,
or a result (`keep_for_backward`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from ...meter.count import Block
from ...meter.operation import Op
from ...meter.tensor_parts import flat_tensors
from ...meter.work import Work, work_of

Phase = Literal["forward", "backward", "optimizer step"]
FUSED_KINDS = ("pointwise", "norm", "copy")
FUSED = "compiled.chain"  # name of the work of a chain
_OVERWRITES = ("aten.copy_", "aten.fill_", "aten.zero_")  # read nothing of their first operand
_ALIKE = 1.1  # a row's mean and deviation beside the row: what they are computed from serves other results, too
_RANDOM = ("aten.native_dropout",)  # whose masks are made again from a seed
_NEW_STATE = ("aten.zeros_like", "aten.full_like")  # of an optimizer, in the first step only
_PASSING = ("temporaries", "activations", "recomputed activations")  # categories of what chains make
_Region = tuple[Block, int, int]  # what is read: of this memory, from this place on, so many bytes


@dataclass(frozen=True, slots=True)
class RepeatedWork:
    """The same work, done several times in one optimizer step.

    Attributes:
        recomputed: whether activation checkpointing does it a second time.
        times: how often a step does it, over all its micro-batches.
    """

    work: Work
    phase: Phase
    recomputed: bool
    times: float


@dataclass(eq=False)
class _Chain:
    """Operations that become one kernel: what they read of the memory before them, and what they made."""

    phase: Phase
    recomputed: bool
    dtype: str
    reads: set[_Region] = field(default_factory=set)
    made: dict[Block, int] = field(default_factory=dict)
    written: int = 0

    @property
    def work(self) -> Work:
        nbytes = self.written + sum(nbytes for *_, nbytes in self.reads)
        return Work(FUSED, "pointwise", 0, nbytes, self.dtype, ())


def _largest(blocks: Iterable[Block]) -> int:
    return max((block.nbytes for block in blocks), default=0)


class WorkCount:
    """Counts the work of every operation of a step that it is shown.

    Args:
        compiled: fuse chains, but for the optimizer's step, which is not part of the model.
        block_of: finds the memory behind a tensor; None for a tensor without.
        apart: names of operations that the compiler does not see.
    """

    def __init__(self, compiled: bool, block_of: Callable[[Tensor], Block | None], apart: Collection[str] = ()) -> None:
        self._compiled, self._block_of, self._apart = compiled, block_of, apart
        self._seen: list[tuple[Work | _Chain, Phase, bool]] = []  # in order
        self._chains: list[_Chain] = []
        self._open: _Chain | None = None  # the last of them, while it grows
        self._unwritten: dict[Block, _Chain] = {}  # memory that so far only the backward pass may want
        self._makers: dict[Block, _Chain] = {}
        self._made_of: dict[Block, list[Block]] = {}  # what the operation that made a result has read
        self._kept: dict[Block, set[Block]] = {}  # what has to stay, and the results that are made again from it

    def see(self, operation: tuple[Any, Any, Any, Any], op: Op, recomputed: bool) -> None:
        """Count one operation: `operation` is what the dispatcher called, its args, its kwargs and the result."""
        work = work_of(*operation)
        phase: Phase = "optimizer step" if "optimizer step" in op.phase else "backward"
        phase = "forward" if op.phase == "forward" else phase
        if work is None or (phase == "optimizer step" and work.name in _NEW_STATE):
            return
        if not self._compiled:
            self._seen.append((work, phase, recomputed))
            return
        _, args, kwargs, result = operation
        operands = list(self._regions((args[work.name in _OVERWRITES :], *kwargs.values())))
        looks_up = sum(nbytes for *_, nbytes in operands) > work.bytes  # reads a part of a table
        fused = work.kind in FUSED_KINDS and work.name not in self._apart
        if phase != "optimizer step" and fused and not looks_up:
            results = list(self._regions((result,)))
            self._join((phase, recomputed, work.dtype), operands, results)
            sources = [block for block, *_ in operands]
            for block in {block for block, *_ in results} - set(sources):
                self._made_of[block] = [] if work.name in _RANDOM and block.nbytes < _largest(sources) else sources
            return
        if phase != "optimizer step":  # an update within the backward pass is no part of its chains
            self._end_chain()
        self._seen.append((work, phase, recomputed))
        for block, *_ in operands:
            self._write(block)

    def keep(self, tensor: Tensor) -> None:
        """Count `tensor` as written, though chains alone read it."""
        block = self._block_of(tensor)
        if block is not None:
            self._write(block)

    def steps(self, share: Callable[[Phase], float]) -> list[RepeatedWork]:
        """Return the work of one optimizer step; `share` says how often a phase that was seen comes in it."""
        times = Counter(self.between(0, self.mark()))
        return [RepeatedWork(work, phase, again, n * share(phase)) for (work, phase, again), n in times.items()]

    def mark(self) -> int:
        """End what may still grow, and return how much has been seen so far."""
        self._end_chain()
        return len(self._seen)

    def between(self, first: int, last: int) -> list[tuple[Work, Phase, bool]]:
        """Return (work, phase, whether it is recomputed) of what was seen between two marks, in order.

        What a chain has to write is known only when all has run that might read it.
        """
        works = ((getattr(seen, "work", seen), phase, again) for seen, phase, again in self._seen[first:last])
        return [(work, phase, again) for work, phase, again in works if not (work.name == FUSED and not work.bytes)]

    @property
    def never_written(self) -> set[Block]:
        """The memory that eager mode writes and a compiled step does not need."""
        return {block for chain in self._chains for block in chain.made if block.category in _PASSING}

    def keep_for_backward(self) -> None:
        """Let what the backward pass needs live as long as eager mode keeps the result that is made again from it.

        Call it once all has run; what it keeps is no longer among `never_written`.
        """
        for block, results in self._kept.items():
            ends = [result.end for result in (block, *results)]
            block.end = None if None in ends else max(ends)
            block.category = "activations" if block.category == "temporaries" else block.category
            self._write(block)

    def _regions(self, values: Iterable[Any]) -> Iterator[_Region]:
        for tensor in flat_tensors(values):
            block = self._block_of(tensor)
            if block is not None and block.nbytes:
                nbytes = min(tensor.numel() * tensor.element_size(), block.nbytes)  # expanded ones are there once
                yield block, tensor.storage_offset(), nbytes

    def _join(self, kind: tuple[Phase, bool, str], operands: list[_Region], results: list[_Region]) -> None:
        """Let an operation continue the chain, or begin another where a new phase has begun."""
        phase, recomputed, dtype = kind
        if self._open is None or (self._open.phase, self._open.recomputed) != (phase, recomputed):
            self._end_chain()
            self._open = _Chain(phase, recomputed, dtype)
            self._chains.append(self._open)
            self._seen.append((self._open, phase, recomputed))
        chain = self._open
        again = phase == "backward" and not recomputed
        for region in operands:
            block = region[0]
            if block in chain.made:
                continue
            if again and block in self._unwritten:
                chain.reads |= self._unwritten[block].reads  # it is computed again from these
                for each in self._cheapest(block)[1]:
                    self._kept.setdefault(each, set()).add(block)
            else:
                self._write(block)
                chain.reads.add(region)
        known = {block for block, *_ in operands}
        for block, _, nbytes in results:
            if block in known and block not in chain.made:
                chain.written += nbytes  # changed in place
            else:
                chain.made[block] = nbytes
                self._makers[block] = chain

    def _cheapest(self, block: Block) -> tuple[int, set[Block]]:
        """Return the fewest bytes that have to be kept so that the backward pass has `block`, and what they are.

        What is in memory anyway, or kept for another result, costs nothing.
        """
        maker = self._makers.get(block)
        if maker is None or block not in maker.made:  # written
            return (0, set()) if block.end is None else (block.nbytes, {block})
        kept: set[Block] = set()
        for source in self._made_of.get(block, ()):
            if source is not block:
                kept |= self._cheapest(source)[1]
        nbytes = sum(each.nbytes for each in kept if each not in self._kept)
        return (nbytes, kept) if nbytes <= _ALIKE * block.nbytes else (block.nbytes, {block})

    def _end_chain(self) -> None:
        """Close the chain: what is alive of its results is needed outside."""
        chain, self._open = self._open, None
        if chain is None:
            return
        alive = [block for block in chain.made if block.end is None]
        self._unwritten.update(dict.fromkeys(alive, chain))
        if chain.phase == "backward" and not chain.recomputed:
            for block in alive:
                self._write(block)

    def _write(self, block: Block) -> None:
        """Count the result `block` of a chain as written: somebody else reads it."""
        chain = self._unwritten.pop(block, None)
        if chain is None and self._open is not None and block in self._open.made:
            chain = self._open
        if chain is not None:
            chain.written += chain.made.pop(block)
