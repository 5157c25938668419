"""The trace of one stage: which memory was alive, what was computed and what was sent, place by place.

A place is a block's pass, or what comes before the first and after the last. Blocks that are alike leave the same
trace, so a long stage follows from two short ones (`long_stage.py`).
"""

import bisect
import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...meter.count import Block, Count
from ...meter.work import Work
from ..allocator import ROUNDING
from ..simulate.cuda_kernels import scratch_bytes
from ..simulate.work_count import WorkCount
from .collective import Collective

BUFFERS = "communication buffers"
_GATHER, _REDUCE = "c10d::_allgather_base_", "c10d::_reduce_scatter_base_"
_COPY_IN = "fsdp::all_gather_copy_in"  # passes over this rank's shard only, though it returns the whole buffer
_ARRIVED = "fsdp::split_with_sizes_copy"  # what a gathering brought is copied out of its buffer: it must be there


@dataclass(frozen=True)
class Message:
    """A collective: on which wire, of how many bytes (of the whole tensor), and whether the program waits for it.

    Raises:
        ValueError: there is no such collective.
    """

    collective: Collective | str
    wire: str
    nbytes: int
    waits: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "collective", Collective(self.collective))


@dataclass(frozen=True)
class Arrival:
    """The program waits for the first message on a wire for which nobody has waited yet.

    Raises:
        ValueError: there is no such collective.
    """

    collective: Collective | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "collective", Collective(self.collective))


Event = Work | Message | Arrival
_END = ("end", "")


@dataclass
class Place:
    """What happened in one place of one action.

    Attributes:
        name: "pre", "layer 3" or "post".
        events: in order.
        start, peak, end: bytes alive by category, at its beginning, at its fullest moment and at its end.
        recomputed_flops: FLOPs that checkpointing does a second time.
    """

    name: str
    events: list[Event] = field(default_factory=list)
    start: Counter[str] = field(default_factory=Counter)
    peak: Counter[str] = field(default_factory=Counter)
    end: Counter[str] = field(default_factory=Counter)
    recomputed_flops: int = 0


class Moment(NamedTuple):
    """A moment of a stage: in which action, in which of its places (0, 1, ...), and how long after its beginning."""

    action: tuple[str, str]
    place: int
    after: int


class Life(NamedTuple):
    """The memory of one tensor of a stage: `born` is None for what is there before the step, `died` for what stays."""

    nbytes: int
    born: Moment | None
    died: Moment | None


@dataclass(frozen=True)
class _Bound:
    """Where a place of an action begins, and when."""

    action: tuple[str, str]
    place: str
    tick: int


class Trace(Count):
    """Counts memory, work and messages of a stage's actions.

    Args:
        names: the wire of a process group, by the group's name (of `fully_shard`'s collectives).
    """

    def __init__(self, names: dict[str, str]) -> None:
        ticks = itertools.count(1)
        super().__init__("cpu", lambda: next(ticks), lambda storage: storage._cdata)
        self.work = WorkCount(False, self.track)
        self._names = names
        self._action = ("", "")
        self._counted: list[Block] = []
        self._log: list[tuple[int, _Bound | Message | Arrival]] = []  # each with how much work had been seen

    def compile(self, apart: Collection[str]) -> None:
        """Let a compiler fuse chains of operations, but for those named in `apart`, which it does not see."""
        self.work = WorkCount(True, self.track, apart)

    def begin(self, action: tuple[str, str]) -> None:
        """Begin an action; its first place is "pre"."""
        self._action = action
        self.mark("pre")

    def mark(self, place: str) -> None:
        """Begin another place of the running action."""
        self._write(_Bound(self._action, place, self._clock()))

    def tell(self, collective: str, wire: str, nbytes: int) -> None:
        """Hear from a `Wire` that it sends; the program waits for these, but for shifts, which `arrived` ends."""
        self._write(Message(collective, wire, nbytes, collective != "shift"))

    def arrived(self, collective: str) -> None:
        """Hear from a `Wire` that the program waits for the first of its shifts."""
        self._write(Arrival(collective))

    def made(self, tensor: Tensor) -> None:
        """Hear from a `Wire` that `tensor` is a buffer of its own."""
        self.track(tensor, BUFFERS)

    def kept(self, tensor: Tensor) -> None:
        """Hear from a `Wire` that `tensor` lies in memory: no chain of a compiler makes it up again."""
        self.work.keep(tensor)

    def _write(self, entry: "_Bound | Message | Arrival") -> None:
        self._log.append((self.work.mark(), entry))

    def pack(self, tensor: Tensor) -> tuple[Tensor, int]:
        """Pack hook of autograd: a buffer that is saved for the backward pass is an activation from then on."""
        packed = super().pack(tensor)
        block = self.track(tensor)
        if block and block.category == BUFFERS:
            block.category = "activations"
        return packed

    def observe(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count the work of an operation, its scratch memory, and the collectives of `fully_shard`."""
        if func.namespace in ("c10d", "fsdp"):
            self._listen(func._schema.name, args)
        if func.namespace != "c10d" and func._schema.name != _COPY_IN:
            self.work.see((func, args, kwargs, result), self._op, self._recomputing)
        nbytes = scratch_bytes(func, args)
        if nbytes:
            self.blocks.append(Block(0, nbytes, "kernel workspace", self._clock(), self._op, self._clock()))

    def _listen(self, name: str, args: Any) -> None:
        if name == _GATHER:
            self._send("all-gather", args[0], args[2])
        elif name == _REDUCE:
            self._write(Arrival("reduce-scatter"))  # the one before must be done
            self._send("reduce-scatter", args[1], args[2])
        elif name == "c10d::allreduce_":
            self._send("all-reduce", args[0][0], args[1])
        elif name == _ARRIVED:
            self._write(Arrival("all-gather"))

    def _send(self, collective: str, tensor: Tensor, group: Any) -> None:
        wire = self._names[torch.distributed.ProcessGroup.unbox(group).group_name]
        self._write(Message(collective, wire, _nbytes(tensor), False))

    def places(self, adapters: bool = False) -> dict[tuple[str, str], list[Place]]:
        """Return the places of each action in order, and end the count.

        Args:
            adapters: whether layers have them. A block's own modules keep what their backward pass reads. A sum of what
                a layer and its adapter return is kept by none of them.
        """
        self.begin(_END)
        self.label_recomputed()
        self.close()
        if adapters:
            self.work.keep_for_backward()
        unwritten = self.work.never_written
        for block in self.blocks:  # what `fully_shard` gathers and reduces
            if block.op.name.startswith(("fsdp.", "c10d.")) and block.category in ("temporaries", "weight copies"):
                block.category = BUFFERS
        blocks = [block for block in self.blocks if block.nbytes and block not in unwritten]
        self._label_kept(blocks)
        self._counted = blocks
        moments = _moments(blocks, [entry.tick for _, entry in self._log if isinstance(entry, _Bound)])
        result: dict[tuple[str, str], list[Place]] = {}
        at, seen, place = 0, 0, Place("")
        for work, entry in self._log:
            for each, _, again in self.work.between(seen, work):
                place.events.append(each)
                place.recomputed_flops += each.flops if again else 0
            seen = work
            if isinstance(entry, _Bound):
                place.end = moments[at][0]
                place = Place(entry.place, [], *moments[at])
                result.setdefault(entry.action, []).append(place)
                at += 1
            else:
                place.events.append(entry)
        result.pop(_END)
        return result

    def lives(self, before: tuple[str, str]) -> list[Life]:
        """Return what was alive after the action `before`, in order; once `places` has ended the count."""
        bounds = [entry for _, entry in self._log if isinstance(entry, _Bound)]
        ticks, numbers = [bound.tick for bound in bounds], list[int]()
        for bound in bounds:
            numbers.append(0 if bound.place == "pre" else numbers[-1] + 1)

        def moment(tick: int | None) -> Moment | None:
            at = bisect.bisect_right(ticks, tick) - 1 if tick is not None else -1
            known = at >= 0 and bounds[at].action != _END
            return Moment(bounds[at].action, numbers[at], tick - ticks[at]) if known else None

        found = []
        for block in self._counted:
            born, died = moment(block.start), moment(block.end)
            if not (died and died.action == before) and not (block.end and not born and not died):
                found.append(Life(block.nbytes, None if born and born.action == before else born, died))
        return found

    def _label_kept(self, blocks: list[Block]) -> None:
        """Label what outlives its action: selective checkpointing keeps it, and not by autograd's hooks."""
        begins = [entry.tick for _, entry in self._log if isinstance(entry, _Bound) and entry.place == "pre"]
        for block in blocks:
            at = bisect.bisect_right(begins, block.start)
            if block.category == "temporaries" and at < len(begins) and (block.end is None or block.end > begins[at]):
                block.category = "activations"


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _moments(blocks: Sequence[Block], ticks: Sequence[int]) -> list[tuple[Counter[str], Counter[str]]]:
    """Return, for each time, the bytes alive by category then, and at the fullest moment before the next time."""
    changes = [(block.start, 1, block) for block in blocks]
    changes += [(block.end, -1, block) for block in blocks if block.end is not None]
    changes.sort(key=lambda change: change[0])
    held: Counter[str] = Counter()
    total, at = 0, 0
    result = []
    for tick, after in itertools.zip_longest(ticks, ticks[1:], fillvalue=None):
        while at < len(changes) and changes[at][0] < tick:
            total += _apply(changes[at], held)
            at += 1
        start, peak, most = held.copy(), held.copy(), total
        while at < len(changes) and (after is None or changes[at][0] < after):
            total += _apply(changes[at], held)
            at += 1
            if total > most:
                peak, most = held.copy(), total
        result.append((start, peak))
    return result


def _apply(change: tuple[int, int, Block], held: Counter[str]) -> int:
    """Enter a beginning or an end of a block in `held`, and return by how much the total changes."""
    _, sign, block = change
    size = sign * -(-block.nbytes // ROUNDING) * ROUNDING
    held[block.category] += size
    return size
