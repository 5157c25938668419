"""A long run on thousands of GPUs that fail: an event simulation, from failure to failure.

Failures come at random, at the rates of the table of interruptions in "The Llama 3 Herd of Models", section 3.3.4: 419
unexpected ones of 16,384 GPUs in 54 days. What a job does between two of them follows from its settings, so no step is
simulated. What is not published is assumed, and named as such: restarts, repairs, stragglers, pauses of healthy ranks.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

DAY, GPU_DAYS = 86_400.0, 16_384 * 54
# Of each kind, how many there were. Nodes: GPUs 148, their memory 72, SRAM 19, system processors 17, sensors 6, SSDs 3,
# power supplies 3, chassis 2, boards 2, CPUs 2, memory 2, maintenance 32. Hangs: switches and cables 35, network cards
# 7, the watchdog of NCCL 7. Software: bugs 54, dependencies 2. Corruption: silent data corruption 6.
COUNTED = {"node": 308, "hang": 49, "software": 56, "corruption": 6}
ASSUMED = {"straggler": 20}  # in the same time; a healthy job's pauses are counted by day
USES = ("training", "saving", "comparing", "done again", "slowed", "waiting for a timeout", "restarting", "no node")


@dataclass(frozen=True)
class Failure:
    """What happens to a job, and when.

    Attributes:
        wait: seconds of the job from the restart before until it stops, or until a comparison finds what is wrong.
        unseen: seconds of training until a comparison finds a straggler, or corruption.
        before: seconds trained when corruption begins, since the last checkpoint; None: as many as `wait` leads to.
    """

    kind: str
    wait: float
    unseen: float = 0.0
    before: float | None = None


@dataclass(frozen=True)
class Fleet:
    """A job and what its operators have set.

    Attributes:
        gpus: at work, in nodes of eight.
        interval: seconds of training between checkpoints.
        spares: nodes that stand by. A broken node is back after a day (assumed).
        timeout: seconds after which a collective that does not return ends the job.
        compare: seconds between comparisons of the ranks: step times, and gradients of the same rows.
    """

    gpus: int = 16_384
    interval: float = 1800.0
    spares: int = 16
    timeout: float = 600.0
    compare: float = DAY

    SAVE = 12 * 405e9 / 2e12  # seconds: FP32 weights and moments of 405B, at the 2 TB/s of section 3.3.1
    RESTART, REPAIR, COMPARISON = 600.0, DAY, 60.0  # seconds (assumed)
    PAUSES, PAUSE = 20, 60.0  # a day, and the mean seconds of one (assumed)
    SLOWER = 0.15  # of a job with a straggler (assumed)

    def run(
        self, days: float = 54.0, seed: int = 0, failures: Iterable[Failure] | None = None
    ) -> tuple[dict[str, float], list[tuple[float, str, float]]]:
        """Return the seconds of each use, and the events: (second, kind, seconds of training to do again).

        Args:
            failures: those that happen, one after the other; drawn with `seed` where none are given.
        """
        now, since, coming = 0.0, 0.0, iter(failures or self._drawn(random.Random(f"fleet {seed}")))
        used, events, repairs = dict.fromkeys(USES, 0.0), [], [0.0] * self.spares  # when each spare is there
        cycle = self.interval + self.SAVE + self.COMPARISON * self.interval / self.compare
        while True:
            failure = next(coming, Failure("none", math.inf))
            kind, wait = failure.kind, failure.wait
            working = min(wait, days * DAY - now)
            trained = working * self.interval / cycle
            used["training"] += trained
            used["saving"] += working * self.SAVE / cycle
            used["comparing"] += working - trained - working * self.SAVE / cycle
            now, since = now + working, (since + trained) % self.interval
            if working < wait or now >= days * DAY:
                return used, events
            costs = self._costs(failure, since, used["training"])
            events.append((now, kind, costs["done again"]))
            if kind not in ("software", "false alarm"):
                came = heapq.heappop(repairs) if repairs else now + self.REPAIR
                costs["no node"] = max(0.0, came - now)
                if self.spares:
                    heapq.heappush(repairs, max(came, now) + self.REPAIR)
            for use, seconds in costs.items():
                used[use] += seconds
                if use in ("done again", "slowed"):  # these seconds were counted as training
                    used["training"] -= seconds
                else:
                    now += seconds
            since = 0.0

    def average(self, runs: int = 10, days: float = 54.0) -> tuple[Counter[str], Counter[str]]:
        """Run `runs` times, with seeds from 0 on, and return two means.

        The first is the share of the time that each use takes, between 0 and 1; the second, the seconds of training
        that have to be done again because of each kind of event.
        """
        shares, lost = Counter(), Counter()
        for seed in range(runs):
            used, events = self.run(days, seed)
            total = sum(used.values())
            shares.update({use: seconds / total / runs for use, seconds in used.items()})
            for _, kind, seconds in events:
                lost[kind] += seconds / runs
        return shares, lost

    def _drawn(self, chance: random.Random) -> Iterator[Failure]:
        """Draw failures at their rates, without end."""
        rates = {kind: n * self.gpus / GPU_DAYS for kind, n in (COUNTED | ASSUMED).items()}  # a day
        rates["false alarm"] = self.PAUSES * math.exp(-self.timeout / self.PAUSE)  # a pause longer than the timeout
        while True:
            kind = chance.choices(list(rates), list(rates.values()))[0]
            wait, unseen = chance.expovariate(sum(rates.values()) / DAY), chance.uniform(0, self.compare)
            yield Failure(kind, wait, unseen, chance.uniform(0, self.interval) if kind == "corruption" else None)

    def _costs(self, failure: Failure, since: float, trained: float) -> dict[str, float]:
        """Return what an event costs, by use; `since` are the seconds trained since the last checkpoint."""
        costs = {"done again": since, "restarting": self.RESTART}
        if failure.kind in ("hang", "false alarm"):
            costs["waiting for a timeout"] = self.timeout
        if failure.kind == "corruption":  # all that was trained since it began, from the checkpoint before it
            before = (since - failure.unseen) % self.interval if failure.before is None else failure.before
            costs["done again"] = min(trained, failure.unseen + before)
        if failure.kind == "straggler":  # replaced right after a checkpoint
            costs |= {"done again": 0.0, "slowed": min(trained, failure.unseen * self.SLOWER)}
        return costs
