"""A clock that a probe sets forward, so that a duration says which moments it holds, however busy the machine is."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

_SECONDS = ("perf_counter", "monotonic", "time")


class SetClock:
    """Within its `with` block, Python's clocks go `ahead` of what they are, on this thread alone.

    Args:
        names: of an answer; a clock that it has imported by its own name is replaced there, too.

    Attributes:
        ahead: seconds.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.ahead = 0.0
        self._names = names
        self._thread = threading.get_ident()
        self._patches = ExitStack()

    def __enter__(self) -> "SetClock":
        for name in _SECONDS:
            seconds, nanoseconds = getattr(time, name), getattr(time, f"{name}_ns")
            self._replace(name, self._later(seconds, 1))
            self._replace(f"{name}_ns", self._later(nanoseconds, 10**9))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def _later(self, clock: Callable[[], Any], a_second: int) -> Callable[[], Any]:
        def later() -> Any:
            mine = threading.get_ident() == self._thread  # a notebook's own threads wait by these clocks
            return clock() + type(clock())(self.ahead * a_second) if mine else clock()

        return later

    def _replace(self, name: str, later: Callable[[], Any]) -> None:
        clock = getattr(time, name)
        self._patches.enter_context(mock.patch.object(time, name, later))
        for own in [own for own, value in self._names.items() if value is clock]:
            self._patches.enter_context(mock.patch.dict(self._names, {own: later}))


@contextmanager
def sleepless(names: dict[str, Any], longest: float = math.inf) -> Iterator[None]:
    """Have a sleep take no time and set the clocks forward: who waits for a file with a limit soon gives up.

    Args:
        names: of an answer, as for `SetClock`.
        longest: seconds of sleep, all together, after which a further one raises `TimeoutError`: without a limit of
            its own, a loop that waits for what never comes would hang.
    """
    with SetClock(names) as clock:

        def sleep(seconds: float) -> None:
            if clock.ahead > longest:
                raise TimeoutError(
                    f"it has slept for {longest:.0f} s by the check's own clock, and what it waits for has not come. "
                    "Ranks wait for each other in a collective, not by sleeping"
                )
            clock.ahead += seconds

        own = {key: sleep for key, value in names.items() if value is time.sleep}
        with mock.patch.object(time, "sleep", sleep), mock.patch.dict(names, own):
            yield
