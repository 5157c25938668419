"""Checks of the run that is replayed with its failures, and of the interval between checkpoints."""

import math
import random
from typing import Any, ClassVar

from ...planner.goodput import goodput
from ..base import Check, Evidence

Case = tuple[float, float, float, float, list[float]]  # work, interval, save, restart, failures
SLACK = 1e-6  # relative


class OnReplays(Check):
    """Compares the seconds of some runs with the reference's."""

    cases: ClassVar[list[Case]]
    look: ClassVar[str]

    @classmethod
    def drawn(cls, seed: int) -> list[Case]:
        """Return the runs to replay."""
        return cls.cases

    @classmethod
    def probe(cls, seed: int, wall_clock: Any, best_interval: Any) -> Evidence:
        cases, seconds, changed = cls.drawn(seed), [], False
        for *numbers, failures in cases:
            given = list(failures)
            seconds.append(float(wall_clock(*numbers, given)))
            changed |= given != list(failures)
        return {"runs": cases, "seconds": seconds, "changed": changed}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for case, got, right in zip(expected["runs"], seen["seconds"], expected["seconds"], strict=True):
            if not abs(got - right) <= SLACK * max(1.0, right):
                work, interval, save, restart, failures = case
                times = ", ".join(f"{time:g}" for time in failures[:6]) + (", …" if len(failures) > 6 else "")
                said = f"failures at {times}" if failures else "no failures"
                return (
                    f"work {work:g}, interval {interval:g}, save {save:g}, restart {restart:g}, {said}: "
                    f"{got:g} s; it should be {right:g} s. {cls.look}"
                )
        return "`wall_clock` changed the list of failures that it was given." if seen["changed"] else None


class CheckpointsBetweenPieces(OnReplays):
    """Without failures, the run takes its work plus a checkpoint between segments, but none at the end."""

    hint = (
        "Go segment by segment: the next one is `interval` seconds, or the rest of the work.\n"
        "After the last segment the run is over, without a checkpoint."
    )
    look = "How many checkpoints does this run write? None after the last segment."
    cases: ClassVar = [(100, 25, 2, 7, []), (90, 40, 3, 5, []), (30, 50, 4, 1, []), (60, 20, 0, 0, [])]


class LosesWorkSinceCheckpoint(OnReplays):
    """A failure loses the work since the last checkpoint and costs a restart."""

    hint = (
        "Two numbers are enough: the time on the clock, and the work that is safe in a checkpoint.\n"
        "If the segment would not finish before the next failure, the clock jumps to the failure, plus the restart. "
        "The safe work does not change."
    )
    look = "How much work was in a checkpoint at the failure, and how much had to be repeated?"
    cases: ClassVar = [
        (100, 25, 2, 7, [40]),
        (90, 40, 3, 5, [10, 71]),
        (30, 50, 4, 1, [29]),
        (100, 20, 1, 0, [5, 33, 90]),
    ]


class CountsWhenFinished(OnReplays):
    """A checkpoint counts once it is finished: a failure while saving loses the segment."""

    hint = "A segment and its checkpoint succeed or fail together: compare the next failure with the end of both."
    look = "Until a checkpoint is written in full, it is worthless; from the moment its save ends, it counts."
    cases: ClassVar = [
        (100, 25, 4, 7, [27]),
        (90, 30, 10, 5, [35, 79]),
        (60, 20, 5, 2, [22, 48]),
        (60, 20, 5, 2, [25]),  # the moment the first save ends
    ]


class FailsWhileRestarting(OnReplays):
    """A failure during a restart starts the restart over."""

    hint = "After a failure, while the next one comes before now + restart, the clock jumps to that one."
    look = "A failure comes while the job restarts, so the restart begins again."
    cases: ClassVar = [(100, 25, 2, 10, [40, 45]), (50, 25, 2, 20, [5, 20, 35]), (40, 10, 1, 6, [8, 12, 40, 45])]


class EndsWithItsWork(OnReplays):
    """The run is over as soon as its work is done; failures from then on change nothing."""

    hint = "Return the clock when the last segment is done, before you look at the next failure."
    look = "The work is done when the last of these failures comes, or before it."
    cases: ClassVar = [(50, 25, 2, 7, [53]), (50, 50, 9, 7, [55]), (60, 20, 3, 4, [30, 90, 200]), (50, 25, 2, 7, [52])]


class ManyFailures(OnReplays):
    """Long runs with many random failures take the right number of seconds."""

    after = (
        "checkpoints_between_pieces",
        "loses_work_since_checkpoint",
        "counts_when_finished",
        "fails_while_restarting",
        "ends_with_its_work",
    )
    hint = "Use each failure once. Failures during work, saves and restarts are all on one clock."
    look = "The short cases are easier to trace by hand. Make those pass first."
    cases: ClassVar = []

    @classmethod
    def drawn(cls, seed: int) -> list[Case]:
        chance, cases = random.Random(seed), []
        for _ in range(12):
            time, failures, mtbf = 0.0, [], chance.uniform(40, 120)
            while time < 40_000:
                time += chance.expovariate(1 / mtbf)
                failures.append(round(time, 3))
            work = float(chance.randint(500, 1500))
            cases.append((work, float(chance.randint(5, 40)), chance.uniform(0.5, 5), chance.uniform(1, 15), failures))
        return cases


class NearTheBest(Check):
    """With `best_interval`, goodput is within 1% of the best."""

    compared = False
    hint = (
        "A second of training costs save / interval seconds for checkpoints.\n"
        "A failure loses half an interval on average, and failures come every `mtbf` seconds: "
        "a second of training costs interval / (2 mtbf).\n"
        "Which interval makes save / interval + interval / (2 mtbf) smallest? At the minimum the derivative is zero."
    )

    @staticmethod
    def probe(seed: int, wall_clock: Any, best_interval: Any) -> Evidence:
        chance = random.Random(seed)
        cases = [(1.0, 10.0), *((1.0, 10.0 ** chance.uniform(1, 5)) for _ in range(5))]
        cases += [(save * scale, mtbf * scale) for save, mtbf in cases for scale in (0.01, 60.0)]
        return {"cases": cases, "intervals": [float(best_interval(*case)) for case in cases]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for (save, mtbf), interval in zip(seen["cases"], seen["intervals"], strict=True):
            best = max(
                goodput(math.sqrt(2 * save * mtbf) * (0.5 + 0.01 * i), save, mtbf) for i in range(100)
            )  # Young's interval is at most a few percent off, and above
            if not interval > 0:
                return (
                    f"save {save:.4g}, mtbf {mtbf:.4g}: the interval is {interval:.4g} seconds; expected more than 0."
                )
            share = goodput(interval, save, mtbf)
            if not share >= 0.99 * best:
                shorter = goodput(interval * 0.9, save, mtbf) > share
                return (
                    f"save {save:.4g}, mtbf {mtbf:.4g}: with an interval of {interval:.4g} seconds, goodput "
                    f"is {share:.1%}; up to {best:.1%} is possible. The best is {'shorter' if shorter else 'longer'}."
                )
        return None


INTERVAL = (
    CheckpointsBetweenPieces,
    LosesWorkSinceCheckpoint,
    CountsWhenFinished,
    FailsWhileRestarting,
    EndsWithItsWork,
    ManyFailures,
    NearTheBest,
)
