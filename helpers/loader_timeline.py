"""Who did what when: the device's steps, and the batches that each worker made for them.

A timeline comes from a run, or from a model of `DataLoader` with three rules. Batches are dealt to the workers in turn,
never split. Each worker holds at most `prefetch` batches that the loop has not taken yet. The loop takes batches in
order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from .figures import COLOURS

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
    def simulate(cls, seconds: Sequence[float], step: float, workers: int, prefetch: int = 2) -> "LoaderTimeline":
        """Play an epoch in which batch k takes `seconds[k]` to make and `step` to train on; workers only wait.

        Args:
            seconds: for each batch; in waiting, not in work that needs a core.
            step: seconds of a training step.
            workers: 0 for none: the main process makes the batches itself.
            prefetch: batches a worker may have in hand.
        """
        steps: list[Bar] = []
        batches: list[tuple[int, float, float]] = []
        taken: list[float] = []  # when the loop took each batch
        free = [0.0] * max(1, workers)  # when each worker has finished what it has
        now = 0.0
        for k, needed in enumerate(seconds):
            lane = k % workers if workers else 0
            ahead = k - workers * prefetch  # batch k is asked for when this one is taken
            asked = (taken[ahead] if ahead >= 0 else 0.0) if workers else now
            start = max(asked, free[lane])
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

    def plot(self, title: str) -> Figure:
        """Draw a lane for the device and one for each worker."""
        zero = min(start for _, start, _ in self.batches)
        lanes = sorted({lane for lane, _, _ in self.batches})
        names = ["device", *("main process" if lane < 0 else f"worker {lane}" for lane in lanes)]
        figure = Figure(figsize=(8, 1.1 + 0.32 * len(names)), layout="constrained")
        axes = figure.add_subplot()
        look = {"edgecolor": "white", "linewidth": 0.5, "height": 0.8}
        for start, end in self.steps:
            axes.barh(0, 1e3 * (end - start), left=1e3 * (start - zero), color=COLOURS[2], **look)
        for lane, start, end in self.batches:
            axes.barh(1 + lanes.index(lane), 1e3 * (end - start), left=1e3 * (start - zero), color=COLOURS[1], **look)
        axes.set(title=title, xlabel="milliseconds", yticks=range(len(names)), yticklabels=names)
        axes.set_xlim(0, 1e3 * self.seconds)
        axes.invert_yaxis()
        return figure
