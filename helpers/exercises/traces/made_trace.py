"""A trace written by hand: events as PyTorch's profiler exports them, whose times are known beforehand.

The format is Chrome's: a list of dictionaries. `ts` and `dur` are microseconds with three decimals, since the profiler
counts nanoseconds, and `ts` is large, since it counts from the start of the machine.
"""

import random
from typing import Any

Event = dict[str, Any]

HOST, GPU = 1000, 0  # process ids; the profiler gives a GPU its own
MAIN, OTHER = 1000, 1001  # threads of the host
_BOOTED = 4_100_000_000_000_000  # nanoseconds: a machine that has been on for weeks, whose `ts` fills a float


class MadeTrace:
    """A synthetic trace. Its clock is at the end of the last event.

    Attributes:
        events: what has been written, in the order in which it was written.
        now: nanoseconds of the clock.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.events: list[Event] = []
        self.now = _BOOTED + rng.randrange(10**9)

    def gap(self, nanoseconds: int) -> None:
        """Let time go by."""
        self.now += nanoseconds

    def write(self, name: str, start: int, end: int, thread: int = MAIN, category: str = "cpu_op") -> None:
        """Write an event from `start` to `end` (ns), wherever the clock stands."""
        process = GPU if category in ("kernel", "gpu_memcpy", "gpu_user_annotation") else HOST
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": process,
                "tid": thread,
                "ts": start / 1000,
                "dur": (end - start) / 1000,
                "args": {"External id": len(self.events)},
            }
        )

    def run(self, *names: str, nanoseconds: int, before: int = 0, after: int = 0) -> None:
        """Write operations nested in each other, the outermost first.

        Args:
            nanoseconds: that the innermost takes.
            before, after: nanoseconds of its own that each outer one takes before and after the one inside it.
        """
        layers = len(names) - 1
        start, end = self.now, self.now + nanoseconds + layers * (before + after)
        for depth, name in enumerate(names):
            category = "cuda_runtime" if name.startswith("cuda") else "cpu_op"
            self.write(name, start + depth * before, end - depth * after, category=category)
        self.now = end

    def step_from(self, start: int) -> None:
        """Write the step, from `start` until now."""
        self.write("step", start, self.now, category="user_annotation")

    def shuffled(self) -> list[Event]:
        """Return the events in any order: that of a trace is not the order of time."""
        return self.rng.sample(self.events, len(self.events))
