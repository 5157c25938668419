"""What a `MemoryMeter` found: plain data, with the views on it.

Everything is computed from the lifetimes of all memory in the block, by playing their beginnings and ends in order of
time. A profile holds no model and no tensor, so it can be kept, pickled and sent between processes.
"""

import functools
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..core.units import human_bytes
from .categories import CATEGORIES
from .lifetime import Lifetime
from .operation import NO_OP, Op, op_at
from .snapshot import write_snapshot

if TYPE_CHECKING:  # matplotlib takes most of a second, and ranks and graders draw nothing
    from matplotlib.figure import Figure


class Moment(NamedTuple):
    """Bytes by category after a change, `seconds` after the start of the block, and the operation at work."""

    seconds: float
    held: dict[str, int]
    op: Op


class Stage(NamedTuple):
    """One leg of a training step: forward, backward or optimizer step."""

    name: str
    peak_bytes: int
    held_after: dict[str, int]


def _nothing() -> dict[str, int]:
    return dict.fromkeys(CATEGORIES, 0)


@dataclass(eq=False, repr=False)
class MemoryProfile:
    """The peak memory of a block of code, and who held it. It is empty until the block has ended.

    Attributes:
        device_type: "cuda", "mps" or "cpu".
        method: "allocator" (every byte the allocator handed out) or "counted" (tensors only).
        peak_bytes: most bytes held at once by anything the block touched or allocated.
        at_peak: those bytes by category; they sum to `peak_bytes`.
        largest: the most each category held at any moment (these do not add up to the peak).
        peak_at: the phase, the operation and the module during which the peak was reached.
        stages: forward, backward and optimizer step, each with its peak and with what it left behind.
        lifetimes: every stretch of memory that lived in the block.
        ops: the operations, in order of time; those before the block as well, in a meter inside another.
        began, peak_time, ended: when the block began, reached its peak and ended, in ns, as in `lifetimes`.
        outside_bytes: bytes on the GPU that existed before and that the block never touched.
        reserved_bytes: what CUDA's caching allocator had reserved; 0 elsewhere.
        notes: sentences on what the meter could not see.
    """

    device_type: str
    method: str
    peak_bytes: int = 0
    at_peak: dict[str, int] = field(default_factory=_nothing)
    largest: dict[str, int] = field(default_factory=_nothing)
    peak_at: str = "nothing was allocated"
    stages: list[Stage] = field(default_factory=list)
    lifetimes: list[Lifetime] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    began: int = 0
    peak_time: int = 0
    ended: int = 0
    outside_bytes: int = 0
    reserved_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    # -- filling it

    def fill(self, lifetimes: Sequence[Lifetime], ops: Sequence[Op]) -> None:
        """Work out peak and stages from what lived and ran between `began` and `ended`, which must be set."""
        self.lifetimes = [
            life for life in lifetimes if life.start <= self.ended and (life.end is None or life.end >= self.began)
        ]
        self.ops = list(ops)
        self._find_peak()
        self._find_stages()

    def fill_from_statistics(self, peak_bytes: int) -> None:
        """Set the peak alone, as CUDA's own statistics give it: of nobody in particular, at no known moment."""
        self.peak_bytes = peak_bytes
        self.at_peak["inputs and other"] = self.largest["inputs and other"] = peak_bytes
        self.peak_at = "some operation (measured without looking)"

    def _changes(self) -> list[tuple[int, int, str]]:
        """Return (time, change in bytes, category), in order of time."""
        changes = [(life.start, life.nbytes, life.category) for life in self.lifetimes]
        changes += [
            (life.end, -life.nbytes, life.category)
            for life in self.lifetimes
            if life.end is not None and life.end <= self.ended
        ]
        return sorted(changes, key=lambda change: change[0])

    def _find_peak(self) -> None:
        """Go through all changes in order of time and note the peak, and the most of each category."""
        self.peak_time = self.began
        held, total, began = _nothing(), 0, False
        for when, delta, category in [*self._changes(), (self.ended, 0, CATEGORIES[0])]:
            if when >= self.began and not began:  # what was held from the start
                began, self.largest = True, dict(held)
                self.peak_bytes, self.at_peak = total, dict(held)
            held[category] += delta
            total += delta
            if began:
                self.largest[category] = max(self.largest[category], held[category])
                if total > self.peak_bytes:
                    self.peak_bytes, self.at_peak, self.peak_time = total, dict(held), when
        if self.peak_bytes:
            op = op_at(self.ops, self.peak_time)
            if self.peak_time <= self.began:
                self.peak_at = "the start"
            else:
                self.peak_at = "some operation" if op is NO_OP else str(op)

    def _cuts(self) -> list[tuple[int, str]]:
        """Return when each leg of the step began, in ns, and its name."""
        cuts: list[tuple[int, str]] = []
        for op in self.ops:
            leg = op.phase.partition(" (")[0]
            if self.began <= op.when <= self.ended and (not cuts or cuts[-1][1] != leg):
                cuts.append((op.when, leg))
        return cuts

    @property
    def legs(self) -> list[tuple[float, str]]:
        """When each leg of the step began, in seconds from the start of the block, and its name."""
        return [((when - self.began) / 1e9, leg) for when, leg in self._cuts()]

    def _find_stages(self) -> None:
        """Cut the block where its phase changes, and look at each part."""
        cuts = self._cuts()
        changes, at = self._changes(), 0
        held, total = _nothing(), 0
        ends = [when for when, _ in cuts[1:]] + [self.ended]
        for (begin, leg), end in zip(cuts, ends, strict=False):
            peak = 0
            while at < len(changes) and changes[at][0] <= end:
                when, delta, category = changes[at]
                if when > begin:
                    peak = max(peak, total)
                held[category] += delta
                total += delta
                at += 1
            self.stages.append(Stage(leg, max(peak, total), dict(held)))

    # -- reading it

    @functools.cached_property
    def timeline(self) -> list[Moment]:
        """What each category held after each change."""
        held, moments = _nothing(), []
        for when, delta, category in self._changes():
            held[category] += delta
            if when >= self.began:
                moments.append(Moment((when - self.began) / 1e9, dict(held), op_at(self.ops, when)))
        return moments

    def plot(self, title: str = "Memory during the block") -> "Figure":
        """Draw what each category held over time, and where forward, backward and step begin."""
        from .figures import memory_timeline

        return memory_timeline(self.timeline, CATEGORIES, title, self.legs)

    def plot_blocks(self, title: str = "Memory, block by block", blocks: int = 300) -> "Figure":
        """Draw the largest `blocks` stretches of memory one by one, as PyTorch's memory viewer does, and the legs."""
        stretches = [
            ((life.start - self.began) / 1e9, ((life.end or self.ended) - self.began) / 1e9, life.nbytes, life.category)
            for life in self.lifetimes
        ]
        from .figures import mark_legs, memory_blocks

        seconds = (self.ended - self.began) / 1e9
        figure = memory_blocks(stretches, CATEGORIES, seconds, title, blocks)
        mark_legs(figure.axes[0], self.legs, seconds)
        return figure

    def save_snapshot(self, path: str | Path) -> None:
        """Write a file for PyTorch's memory viewer (pytorch.org/memory_viz), on any device."""
        write_snapshot(path, self.lifetimes, self.began)

    def _rows(self) -> list[tuple[str, str, str]]:
        held = [(category, nbytes) for category, nbytes in self.at_peak.items() if nbytes]
        return [(t, human_bytes(n), f"{n / self.peak_bytes:.0%}") for t, n in held]

    def _headline(self) -> str:
        return f"peak {human_bytes(self.peak_bytes)} ({self.method}, {self.device_type}) in {self.peak_at}"

    def __str__(self) -> str:
        lines = [f"  {category:<23}{nbytes:>12}{share:>6}" for category, nbytes, share in self._rows()]
        if self.reserved_bytes:
            lines.append(f"  reserved by the allocator: {human_bytes(self.reserved_bytes)}")
        return "\n".join([self._headline(), *lines, *self.notes])

    def _repr_html_(self) -> str:
        rows = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in self._rows())
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<p>{html.escape(self._headline())}</p><table>{rows}</table>{notes}"
