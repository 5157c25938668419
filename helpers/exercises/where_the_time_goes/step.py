"""Checks of a step's time: operations one after another, on the host itself or in the queue of a GPU."""

import math
import random
from collections.abc import Callable
from typing import Any

from ..base import Check, Evidence

Operation = tuple[float, bool]
StepTime = Callable[[list[Operation], float, bool], tuple[float, float]]
Case = tuple[list[Operation], float, bool]


def _working(rng: random.Random, low: float, high: float, waits: tuple[int, ...] = ()) -> list[Operation]:
    """Return nine operations that take between `low` and `high` microseconds; Python waits for those numbered."""
    return [(1e-6 * rng.uniform(low, high), number in waits) for number in range(9)]


class _Timed(Check):
    """Compares seconds and idle fractions of some steps."""

    cases: Callable[[random.Random], dict[str, Case]]
    look: str

    @classmethod
    def probe(cls, seed: int, step_time: StepTime) -> Evidence:
        seen: Evidence = {}
        for case, (operations, launch, queued) in cls.cases(random.Random(seed)).items():
            answer: Any = step_time(list(operations), launch, queued)
            pair = isinstance(answer, tuple | list) and len(answer) == 2
            seen[case] = [1e6 * float(answer[0]), float(answer[1])] if pair else type(answer).__name__
        return seen

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for case, (microseconds, idle) in expected.items():
            if isinstance(seen[case], str):
                return f"{case}: return the pair (seconds, idle); you return {seen[case]}."
            mine, mine_idle = seen[case]
            if not math.isclose(mine, microseconds, rel_tol=1e-6, abs_tol=1e-6):
                return f"{case}: you return {mine:.4g} µs; expected {microseconds:.4g}. {cls.look}"
            if not math.isclose(mine_idle, idle, rel_tol=1e-6, abs_tol=1e-9):
                unit = " Return a fraction of the step, not a time." if mine_idle > 1 else ""
                return (
                    f"{case}: your {microseconds:.4g} µs is right, but the idle fraction should be {idle:.4g}; you "
                    f"return {mine_idle:.4g}.{unit}"
                )
        return None


class AddsUpOnACpu(_Timed):
    """On a CPU, launches and work of all operations add up, and launches are the idle time."""

    hint = (
        "Without a queue the host does the work itself, so it goes on when the work is done.\n"
        "Whether Python needs the value makes no difference: it is there when the call returns.\n"
        "Idle is 1 minus the seconds of work over all seconds."
    )
    look = "Without a queue, the launch of an operation begins when the work of the one before is done."

    @staticmethod
    def cases(rng: random.Random) -> dict[str, Case]:
        """Return steps of a CPU."""
        launch = 1e-6 * rng.uniform(5, 10)
        return {
            "on a CPU": (_working(rng, 1, 40), launch, False),
            "on a CPU, with values read": (_working(rng, 1, 40, waits=(2, 5)), launch, False),
            "on a CPU, no launch": (_working(rng, 1, 40), 0.0, False),
        }


class WorksThroughTheQueue(_Timed):
    """On a GPU, an operation starts as soon as it has been launched and the one before it is done."""

    hint = (
        "Keep two clocks: when the host has launched, and when the GPU is done.\n"
        "The GPU starts an operation at the later of the two: the end of its launch, or the end of the operation "
        "before. The host goes on launching in the meantime.\n"
        "`gpu = max(gpu, host) + seconds`, after the launch has been added to `host`."
    )
    look = "Each operation starts at the later of two moments: the end of its launch, the end of the one before it."

    @staticmethod
    def cases(rng: random.Random) -> dict[str, Case]:
        """Return steps of a GPU in which Python never waits."""
        launch = 1e-6 * rng.uniform(8, 12)
        long, short = _working(rng, 20, 60), _working(rng, 1, 6)
        return {
            "long operations": (long, launch, True),
            "short operations": (short, launch, True),
            "short ones, then long ones": (short + long, launch, True),
            "long ones, then short ones": (long + short, launch, True),
            "a single operation": (long[:1], launch, True),
        }


class WaitsForAValue(_Timed):
    """Where Python needs a value, the host launches nothing until that operation is done."""

    hint = (
        "If Python needs the value of an operation, when does the host continue?\n"
        "The operation itself is launched like any other; only what comes after it is later."
    )
    look = "If Python waits for an operation, the host continues when the GPU has finished that operation."

    @staticmethod
    def cases(rng: random.Random) -> dict[str, Case]:
        """Return steps of a GPU with values that Python needs."""
        launch = 1e-6 * rng.uniform(8, 12)
        return {
            "a value in the middle": (_working(rng, 20, 60, waits=(4,)), launch, True),
            "a value of the first operation": (_working(rng, 20, 60, waits=(0,)), launch, True),
            "every value": (_working(rng, 5, 60, waits=tuple(range(9))), launch, True),
            "a value at the end": (_working(rng, 20, 60, waits=(8,)), launch, True),
        }


class HandlesNoOperations(_Timed):
    """A step without operations takes no time and is never idle: (0, 0)."""

    hint = "A division by zero seconds fails. What are both results for an empty list?"
    look = "There is nothing to launch."

    @staticmethod
    def cases(rng: random.Random) -> dict[str, Case]:
        """Return empty steps."""
        return {"no operations, on a GPU": ([], 1e-5, True), "no operations, on a CPU": ([], 1e-5, False)}


STEP = (AddsUpOnACpu, WorksThroughTheQueue, WaitsForAValue, HandlesNoOperations)
