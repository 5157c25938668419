"""Run pipelines on real ranks with a clock.

Four ranks on a laptop would fight for its cores. So with the clock on, each action waits until its time is up, and
what is left of real time are messages and ranks that wake up late. On a busy machine they wake up very late. Then the
run is repeated, and if that does not help, it says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from matplotlib.figure import Figure

from ..core.progress_line import progress_line
from ..ranks.run import run_ranks
from .bench import set_up
from .pipeline import Pipeline
from .timeline import Entry, Timeline

TICK = 0.025  # seconds
TRIES = 5
GOOD = 1.05  # a run that took up to so many times its ideal is not repeated
QUIET = 1.1  # and one that took more than this does not count


@dataclass(frozen=True)
class Clocked:
    """A run with a clock.

    Attributes:
        timeline: what happened.
        ideal: what would have happened if messages took no time and timers were exact.
        tick: seconds.
        messages: sent by all ranks together.
    """

    timeline: Timeline
    ideal: Timeline
    tick: float
    messages: int

    @property
    def idle(self) -> float:
        """Percentage of the step in which a rank does nothing, on average."""
        return self.timeline.idle

    @property
    def bubble(self) -> float:
        """What can be said of `idle`: where the machine was too busy for the clock, that of the simulation."""
        return round(self.ideal.idle if self.busy else self.idle, 1)

    def figure(self, title: str) -> Figure:
        """Draw the run in ticks, so that pictures of clocks that go faster or slower have one axis."""
        logs = [
            [line._replace(start=line.start / self.tick, end=line.end / self.tick) for line in log]
            for log in self.timeline.logs
        ]
        return Timeline(logs, "ticks").figure(title)

    @property
    def how(self) -> str:
        """Where `bubble` comes from."""
        return "simulated" if self.busy else "clocked"

    @property
    def stretch(self) -> float:
        """How many times as long as the ideal the run took."""
        return self.timeline.duration / (self.ideal.duration * self.tick)

    @property
    def busy(self) -> bool:
        """Whether the machine was too busy for this run to mean anything."""
        return self.stretch > QUIET

    def __str__(self) -> str:
        return (
            f"clocked: idle {self.idle:.1f}%; if messages took no time and timers were exact, {self.ideal.idle:.1f}% "
            f"(the step took {self.stretch:.2f} times the ideal)"
        )

    @property
    def overslept(self) -> float:
        """The longest time, in seconds, by which an action took longer than it should have."""
        pairs = zip(self.timeline.logs, self.ideal.logs, strict=True)
        lines = [line for logs in pairs for line in zip(*logs, strict=True)]
        return max((real.end - real.start) - (ideal.end - ideal.start) * self.tick for real, ideal in lines)


def clock_pipelines(pipelines: Mapping[str, Pipeline], tick: float = TICK) -> dict[str, Clocked]:
    """Run each pipeline once with the clock, and again where the machine was busy, up to `TRIES` times; keep the best.

    Args:
        pipelines: by name; all have the same number of ranks.
        tick: seconds of a tick.
    """
    best: dict[str, Clocked] = {}
    for _ in range(TRIES):
        again = {name: line for name, line in pipelines.items() if name not in best or best[name].stretch > GOOD}
        if not again:
            break
        ranks = len(next(iter(again.values())).schedules)
        limit = 60 + 10 * sum(line.simulated().duration * tick for line in again.values())
        progress_line(f"running {', '.join(again)}")
        run = run_ranks(_clocked, ranks, again, tick, device="cpu", measure=False, timeout=limit, show=False)
        for name, line in again.items():
            logs, sent = zip(*(results[name] for results in run.results), strict=True)
            new = Clocked(Timeline(logs), line.simulated(), tick, sum(sent))
            best[name] = min(best.get(name, new), new, key=lambda run: run.stretch)
    progress_line("")
    for name, run in best.items():
        if run.busy:
            print(
                f"{name}: this machine is busy, so repeat this cell later; until then, rely on the simulation. The "
                f"step took {run.stretch:.2f} times its ideal; one action took {1e3 * run.overslept:.0f} ms too long."
            )
    return best


def _clocked(pipelines: Mapping[str, Pipeline], tick: float) -> dict[str, tuple[list[Entry], int]]:
    """Return the log of this rank, and how many messages it has sent, in each pipeline."""
    logs = {}
    rank = dist.get_rank()
    for engine, x, y, line in [(*set_up(line), line) for line in pipelines.values()]:
        engine.step(line.schedules[rank], x, y)  # connections are made at the first message
    for name, line in pipelines.items():
        engine, x, y = set_up(line, tick)
        dist.barrier()
        engine.step(line.schedules[rank], x, y)
        logs[name] = engine.log, engine.sent
    return logs
