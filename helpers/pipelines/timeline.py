"""The log of a pipeline: who did what, from when until when."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.figure import Figure

from ..core.colors import COLORS

LOOK = {"F": (0, "forward"), "B": (1, "backward"), "I": (4, "input gradient"), "W": (2, "weight gradient")}
MOST_NUMBERS = 26  # bars of a row in which there is room for the number of the micro-batch


class Entry(NamedTuple):
    """A line of the log."""

    kind: str
    micro_batch: int
    stage: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """One step of a pipeline.

    Attributes:
        logs: what each rank did, in order.
        unit: of the times: "s" of a run, "ticks" of a simulation.
    """

    logs: Sequence[Sequence[Entry]]
    unit: str = "s"

    @property
    def duration(self) -> float:
        """From the first start of any rank to the last end."""
        entries = [entry for log in self.logs for entry in log]
        return max(entry.end for entry in entries) - min(entry.start for entry in entries)

    @property
    def idle(self) -> float:
        """Percentage of the step in which a rank does nothing, on average."""
        busy = sum(entry.end - entry.start for log in self.logs for entry in log)
        return 100 * (1 - busy / self.duration / len(self.logs))

    def idle_of(self, rank: int) -> float:
        """Percentage of the step in which `rank` does nothing."""
        return 100 * (1 - sum(entry.end - entry.start for entry in self.logs[rank]) / self.duration)

    def figure(self, title: str) -> Figure:
        """Draw a row for each rank and a bar for each action, with its micro-batch; later chunks are paler."""
        ranks, scale = len(self.logs), 1e3 if self.unit == "s" else 1.0
        figure = Figure(figsize=(7.5, 1.1 + 0.4 * ranks), layout="constrained")
        axes = figure.add_subplot()
        begin = min(entry.start for log in self.logs for entry in log)
        for rank, log in enumerate(self.logs):
            chunks = sorted({entry.stage for entry in log})
            bars: dict[tuple[str, int], list[tuple[float, float]]] = {}
            for entry in log:
                left, width = scale * (entry.start - begin), scale * (entry.end - entry.start)
                bars.setdefault((entry.kind, chunks.index(entry.stage)), []).append((left, width))
                if len(log) <= MOST_NUMBERS:
                    label = {"ha": "center", "va": "center", "color": "white", "fontsize": 8}
                    axes.text(left + width / 2, rank, str(entry.micro_batch), **label)
            for (kind, chunk), spans in bars.items():
                style = {"facecolor": COLORS[LOOK[kind][0]], "alpha": 0.6**chunk, "edgecolor": "white", "lw": 0.6}
                axes.broken_barh(spans, (rank - 0.4, 0.8), **style)
        for kind in sorted({entry.kind for log in self.logs for entry in log}, key=list(LOOK).index):
            axes.plot([], [], "s", color=COLORS[LOOK[kind][0]], label=LOOK[kind][1])
        figure.legend(loc="outside lower right", ncols=4, frameon=False, fontsize=8)
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.invert_yaxis()
        unit = "milliseconds" if self.unit == "s" else self.unit
        pale = " (later chunks are paler)" if any(len({e.stage for e in log}) > 1 for log in self.logs) else ""
        axes.set(title=f"{title}: idle {self.idle:.1f}%", xlabel=unit + pale)
        return figure
