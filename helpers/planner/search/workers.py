"""Processes that run and plan layouts, each with a memory of what it has run.

What has one key goes to one process, for it knows the runs already; only when nothing else is to be done does another
process take it over.
"""

import importlib
from collections.abc import Callable, Hashable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from types import TracebackType
from typing import Any

AHEAD = 2  # jobs that a process has, one of which it does


class Workers:
    """Some processes, or none: then jobs are done here, at once.

    Args:
        processes: how many.
    """

    def __init__(self, processes: int) -> None:
        self._executors: list[Any] = []
        self._homes: dict[Hashable, int] = {}
        self._running: dict[Future, tuple[Any, int]] = {}  # (tag, process)
        self._here: list[tuple[Any, Any]] = []
        if processes:
            from joblib.externals.loky import ProcessPoolExecutor

            self._executors = [ProcessPoolExecutor(max_workers=1) for _ in range(processes)]
            for executor in self._executors:  # so that they import PyTorch while the layouts are counted
                executor.submit(importlib.import_module, f"{__package__}.best")

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for executor in self._executors:
            executor.shutdown(wait=False, kill_workers=True)

    @property
    def busy(self) -> bool:
        """Whether any job is not done yet."""
        return bool(self._running or self._here)

    @property
    def free(self) -> bool:
        """Whether a process has nothing to do."""
        return not self._here if not self._executors else min(self._loads()) < AHEAD

    def submit(self, key: Hashable, function: Callable[..., Any], *args: Any, tag: Any) -> None:
        """Give out a job; those of one key go to one process if that is not busy for longer than the others."""
        if not self._executors:
            self._here.append((tag, function(*args)))
            return
        loads = self._loads()
        least = loads.index(min(loads))
        home = self._homes.get(key, least)
        at = home if loads[home] < AHEAD + 1 else least
        if key is not None:
            self._homes.setdefault(key, at)
        self._running[self._executors[at].submit(function, *args)] = tag, at

    def done(self) -> list[tuple[Any, Any]]:
        """Wait for a job; return (tag, result) of all that are done."""
        if not self._executors:
            here, self._here = self._here, []
            return here
        if not self._running:
            return []
        finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
        return [(self._running.pop(future)[0], future.result()) for future in finished]

    def _loads(self) -> list[int]:
        loads = [0] * len(self._executors)
        for _, at in self._running.values():
            loads[at] += 1
        return loads
