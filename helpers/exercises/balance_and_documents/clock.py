"""Clock what the ranks of a ring do: the share of the step in which they wait for each other, counted and measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch.distributed as dist

from ...core.progress_line import progress_line
from ...ranks.run import run_ranks
from ..context_parallel.block_log import BlockLog, Entry

STEP = 1.0  # seconds of work for the rank that has most of it
TRIES = 3
GOOD = 1.04  # a run that took up to so many times its ideal is not repeated
QUIET = 1.1  # and one that took more than this does not count


@dataclass(frozen=True)
class ClockedRing:
    """One step on all ranks, with a clock.

    Attributes:
        logs: the blocks that each rank has computed.
        pace: seconds for each unit of work.
    """

    logs: Sequence[Sequence[Entry]]
    pace: float

    @cached_property
    def work(self) -> list[float]:
        """What each rank has computed."""
        return [sum(entry.work for entry in log) for log in self.logs]

    @property
    def counted(self) -> float:
        """Percentage of the step in which a rank waits, if messages take no time: the fullest rank sets the pace."""
        return 100 * (1 - sum(self.work) / len(self.work) / max(self.work))

    @property
    def seconds(self) -> float:
        """From the first start of any rank to the last end."""
        entries = [entry for log in self.logs for entry in log]
        return max(entry.end for entry in entries) - min(entry.start for entry in entries)

    @property
    def idle(self) -> float:
        """Percentage of the step in which a rank does nothing, on average, as the clock says."""
        busy = sum(entry.end - entry.start for log in self.logs for entry in log)
        return 100 * (1 - busy / self.seconds / len(self.logs))

    @property
    def stretch(self) -> float:
        """How many times as long the step took as the fullest rank's work."""
        return self.seconds / (max(self.work) * self.pace)

    @property
    def busy(self) -> bool:
        """Whether the machine was too busy for this run to mean anything."""
        return self.stretch > QUIET

    @property
    def share(self) -> float:
        """What can be said of `idle`: where the machine was too busy for the clock, what was counted."""
        return round(self.counted if self.busy else self.idle, 1)

    def __str__(self) -> str:
        clock = "the machine was too busy for the clock" if self.busy else f"idle {self.idle:.1f}% by the clock"
        return (
            f"{clock}, {self.counted:.1f}% as counted (the step took {self.stretch:.2f} times the busiest rank's work)"
        )


def clock_rings(step: Callable[..., Any], ranks: int, orders: Mapping[str, Any]) -> dict[str, ClockedRing]:
    """Run `step(order)` on ranks for each of the orders with a clock, again where the machine was busy; keep the best.

    Args:
        step: one step of one rank, which computes its blocks with `attend` and `attend_backward`.
        ranks: how many.
        orders: what `step` is given, by name.
    """
    best: dict[str, ClockedRing] = {}
    for _ in range(TRIES):
        again = {name: order for name, order in orders.items() if name not in best or best[name].stretch > GOOD}
        if not again:
            break
        progress_line(f"clocking {', '.join(again)}")
        results = run_ranks(_clocked, ranks, step, again, device="cpu", measure=False, show=False).results
        for name in again:
            logs, paces = zip(*(result[name] for result in results), strict=True)
            new = ClockedRing(logs, paces[0])
            best[name] = min(best.get(name, new), new, key=lambda run: run.stretch)
    progress_line("")
    for name, run in best.items():
        if run.busy:
            print(f"{name}: this machine is busy, so repeat this cell later; until then, rely on the counted figures.")
    return best


def _clocked(step: Callable[..., Any], orders: Mapping[str, Any]) -> dict[str, tuple[list[Entry], float]]:
    """Return this rank's log of each order, and the pace."""
    seen = {}
    for name, order in orders.items():
        with BlockLog() as rehearsal:  # connections are made at the first message
            step(order)
        works: list[float] = [0.0] * dist.get_world_size()
        dist.all_gather_object(works, rehearsal.work)
        dist.barrier()
        with BlockLog(STEP / max(works)) as log:
            step(order)
        seen[name] = log.entries, log.pace
    return seen
