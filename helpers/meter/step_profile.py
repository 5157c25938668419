"""Where the seconds of one training step go: plain data, with the views on it."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from ..core.table import text_table
from .kinds import KINDS, Kind
from .phases import PHASES, Phase
from .timing import Timing
from .utilization import hfu, mfu

if TYPE_CHECKING:  # matplotlib takes most of a second
    from matplotlib.figure import Figure

PartKind = Kind | Literal["gap"]
PART_KINDS: tuple[PartKind, ...] = (*KINDS, "gap")
Method = Literal["kernels", "operations", "host"]
_UNEXPLAINED = 0.05  # share of the step above which the table says so
_METHODS: dict[Method, str] = {
    "kernels": "kernels of the GPU; a gap is time in which none runs",
    "operations": "operations on the CPU; a gap is Python and the dispatcher",
    "host": "operations on the host alone; what the GPU does meanwhile is not seen",
}


@dataclass(frozen=True)
class Part:
    """All calls of one operation in one phase of a step; or several such parts together.

    Attributes:
        phase: of the training step.
        kind: of operation; "gap" is Python and launches.
        name: of the operation ("aten::mm").
        seconds: of all its calls; 0 for what ran inside another's kernel.
        calls: how often it ran.
        flops: of all its calls, with causal attention at the full square.
        bytes: read and written by all its calls.
    """

    phase: Phase
    kind: PartKind
    name: str
    seconds: float
    calls: int
    flops: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.phase}: {self.name} ({self.calls} times) {self.seconds * 1e3:.2f} ms"


@dataclass(frozen=True)
class StepProfile:
    """One training step: its seconds by phase and by kind of operation.

    Attributes:
        device_type: "cuda", "mps" or "cpu".
        method: what the seconds of parts are: of "kernels", of "operations" on a CPU, or of the "host" only.
        timing: of the step without the profiler; its median is the step's `seconds`.
        parts: of the step, with what the profiler added taken off.
        profiled: of the step under the profiler.
        events: what the profiler recorded in a step.
        event_seconds: what it takes to record an event.
        notes: sentences on what the profile could not see.
    """

    device_type: str
    method: Method
    timing: Timing
    parts: tuple[Part, ...]
    profiled: Timing
    events: int
    event_seconds: float
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds of the step without the profiler: the median of several."""
        return self.timing.median

    @property
    def unexplained(self) -> float:
        """Seconds of the step that no part accounts for; below 0 where the parts come to more than the step."""
        return self.seconds - sum(part.seconds for part in self.parts)

    @property
    def flops(self) -> int:
        """FLOPs executed in the step, with causal attention at the full square."""
        return sum(part.flops for part in self.parts)

    @property
    def recomputed_flops(self) -> int:
        """Those of them that activation checkpointing did a second time."""
        return sum(part.flops for part in self.parts if part.phase == "recompute")

    def mfu(self, peak: float) -> float:
        """Return the share of `peak` FLOP/s that serves the model: see `utilization.py`."""
        return mfu(self.flops, self.seconds, peak, self.recomputed_flops)

    def hfu(self, peak: float) -> float:
        """Return the share of `peak` FLOP/s with recomputation included."""
        return hfu(self.flops, self.seconds, peak)

    def by_phase(self) -> dict[Phase, float]:
        """Return the seconds of each phase that took any; with `unexplained` they sum to the step."""
        return self._sums(PHASES, lambda part: part.phase)

    def by_kind(self) -> dict[PartKind, float]:
        """Return the seconds of each kind of operation that took any; with `unexplained` they sum to the step."""
        return self._sums(PART_KINDS, lambda part: part.kind)

    def _sums(self, keys: tuple, key_of: Callable[[Part], str]) -> dict:
        sums = {key: sum(part.seconds for part in self.parts if key_of(part) == key) for key in keys}
        return {key: seconds for key, seconds in sums.items() if seconds}

    def largest(self, rows: int = 3) -> list[Part]:
        """Return the operations that take longest, those of one name in one phase together; gaps are none."""
        return sorted((p for p in self.parts if p.kind != "gap"), key=lambda part: -part.seconds)[:rows]

    def on_roofline(self) -> dict[str, tuple[float, float, float]]:
        """Return FLOPs, bytes and seconds of each part that has all three, for `roofline_figure`."""
        parts = (part for part in self.parts if part.flops and part.bytes and part.seconds)
        return {f"{part.phase}: {part.name}": (part.flops, part.bytes, part.seconds) for part in parts}

    # -- reading it

    def to_json(self) -> str:
        """Return everything as JSON: the attributes, in seconds, FLOPs and bytes."""
        return json.dumps(asdict(self))

    def figure(self, title: str = "Where the time of a step goes") -> "Figure":
        """Draw a bar for each phase, made of the kinds of operation."""
        from .step_figure import phase_bars

        return phase_bars(self.parts, self.unexplained, title)

    def __str__(self) -> str:
        phases = list(self.by_phase())
        rows = [["milliseconds", *phases, "all", "share", "GFLOP/s", "GB/s"]]
        for kind, seconds in self.by_kind().items():
            parts = [part for part in self.parts if part.kind == kind]
            cells = [sum(part.seconds for part in parts if part.phase == phase) for phase in phases]
            rates = [sum(part.flops for part in parts) / seconds, sum(part.bytes for part in parts) / seconds]
            shown = [f"{rate / 1e9:.3g}" if rate else "" for rate in rates]
            rows.append([kind, *map(_milliseconds, cells), f"{seconds * 1e3:.2f}", self._share(seconds), *shown])
        sums = [*self.by_phase().values(), self.seconds - self.unexplained]
        rows.append(["all", *map(_milliseconds, sums), self._share(sums[-1])])
        empty = [""] * len(phases)
        rows.append(["unexplained", *empty, f"{self.unexplained * 1e3:.2f}", self._share(self.unexplained)])
        width = len(rows[0])
        table = text_table([[*row, *[""] * (width - len(row))] for row in rows])
        lines = [self._headline(), table, self._cost(), *self.notes]
        if abs(self.unexplained) > _UNEXPLAINED * self.seconds:
            lines.append(
                "Parts and step differ: the machine was busy, or the steps differ from one another. Take more runs."
            )
        return "\n".join(lines)

    def _share(self, seconds: float) -> str:
        return f"{seconds / self.seconds:.0%}"

    def _headline(self) -> str:
        return f"{self.timing} per step; {_METHODS[self.method]}"

    def _cost(self) -> str:
        added = self.events * self.event_seconds
        return (
            f"Under the profiler {self.profiled}. It recorded {self.events} events per step, so {added * 1e3:.2f} ms "
            f"({self.event_seconds * 1e6:.2f} µs per event) are subtracted from the parts."
        )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds else ""
