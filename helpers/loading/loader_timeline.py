"""Who did what and when: the device's steps, and the batches that each worker made for them.

A timeline comes from a run, or from a model of `DataLoader` with three rules. Batches are dealt to the workers in turn,
never split. Each worker holds at most `prefetch` batches that the loop has not taken yet. The loop takes batches in
order.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch.utils.data import DataLoader

from ..core.colors import COLORS
from .digit_files import DigitFiles

Bar = tuple[float, float]  # start and end, in seconds


@dataclass(frozen=True)
class LoaderTimeline:
    """One epoch.

    Attributes:
        steps: when the device worked.
        batches: (worker, start, end) of each batch in the order of the loop; worker -1 is the main process.
    """

    steps: Sequence[Bar]
    batches: Sequence[tuple[int, float, float]]

    @classmethod
    def of(
        cls, files: DigitFiles, batch_size: int, workers: int, step: Callable[[object], object], batches: int = 12
    ) -> "LoaderTimeline":
        """Run a loop over the first `batches` batches, in the order of the files, and record who did what and when.

        Workers are started by an epoch that does not count.

        Args:
            files: their log says when each file was read, and by which process.
            workers: 0 for none: the main process makes the batches itself.
            step: takes a batch and trains on it, or pretends to.
        """
        how = {"num_workers": workers, "persistent_workers": workers > 0}
        loader = DataLoader(files, batch_size, pin_memory=torch.cuda.is_available(), **how)
        if workers:
            for _ in loader:
                pass
        steps: list[Bar] = []
        for _, batch in zip(range(batches), loader, strict=False):
            start = time.perf_counter()
            step(batch)
            steps.append((start, time.perf_counter()))
        logs = files.log[: len(steps) * batch_size].split(batch_size)
        processes = list(dict.fromkeys(log[0, 2].item() for log in logs))  # in the order in which they are dealt to
        lanes = [processes.index(log[0, 2].item()) if workers else -1 for log in logs]
        made = [(lane, log[:, 0].min().item(), log[:, 1].max().item()) for lane, log in zip(lanes, logs, strict=True)]
        return cls(steps, made)

    @classmethod
    def simulate(cls, seconds: Sequence[float], step: float, workers: int, prefetch: int = 2) -> "LoaderTimeline":
        """Simulate an epoch in which batch k takes `seconds[k]` to make and `step` to train on; workers only wait.

        Args:
            seconds: for each batch; spent waiting, not on work that needs a core.
            step: seconds of a training step.
            workers: 0 for none: the main process makes the batches itself.
            prefetch: batches that a worker may hold.
        """
        steps: list[Bar] = []
        batches: list[tuple[int, float, float]] = []
        taken: list[float] = []  # when the loop took each batch
        free = [0.0] * max(1, workers)  # when each worker has finished its batches
        now = 0.0
        for k, needed in enumerate(seconds):
            lane = k % workers if workers else 0
            ahead = k - workers * prefetch  # batch k is requested when this one is taken
            requested = (taken[ahead] if ahead >= 0 else 0.0) if workers else now
            start = max(requested, free[lane])
            free[lane] = start + needed
            batches.append((lane if workers else -1, start, free[lane]))
            taken.append(max(now, free[lane]))
            now = taken[-1] + step
            steps.append((taken[-1], now))
        return cls(steps, batches)

    @property
    def seconds(self) -> float:
        """From the beginning of the first batch to the end of the last step."""
        return self.steps[-1][1] - min(start for _, start, _ in self.batches)

    @property
    def idle(self) -> float:
        """Share of that time in which the device waited."""
        return 1 - sum(end - start for start, end in self.steps) / self.seconds

    @property
    def making(self) -> float:
        """Mean seconds from the first to the last file of a batch."""
        return statistics.mean(end - start for _, start, end in self.batches)

    @property
    def handover(self) -> float:
        """Mean seconds that a free device waits for a batch whose last file has been read."""
        free = [-float("inf"), *(end for _, end in self.steps)]
        made = (end for _, _, end in self.batches)
        return statistics.mean(s - max(f, m) for (s, _), f, m in zip(self.steps, free, made, strict=False))

    def work(self) -> list[float]:
        """Return the seconds that each worker spends on its batches, worker 0 first."""
        lanes = sorted({lane for lane, _, _ in self.batches})
        return [sum(end - start for lane, start, end in self.batches if lane == this) for this in lanes]

    def plot(self, title: str) -> Figure:
        """Draw a lane for the device and one for each worker."""
        zero = min(start for _, start, _ in self.batches)
        lanes = sorted({lane for lane, _, _ in self.batches})
        names = ["device", *("main process" if lane < 0 else f"worker {lane}" for lane in lanes)]
        figure = Figure(figsize=(8, 1.1 + 0.32 * len(names)), layout="constrained")
        axes = figure.add_subplot()
        look = {"edgecolor": "white", "linewidth": 0.5, "height": 0.8}
        for start, end in self.steps:
            axes.barh(0, 1e3 * (end - start), left=1e3 * (start - zero), color=COLORS[2], **look)
        for lane, start, end in self.batches:
            axes.barh(1 + lanes.index(lane), 1e3 * (end - start), left=1e3 * (start - zero), color=COLORS[1], **look)
        axes.set(title=title, xlabel="milliseconds", yticks=range(len(names)), yticklabels=names)
        axes.set_xlim(0, 1e3 * self.seconds)
        axes.invert_yaxis()
        return figure
