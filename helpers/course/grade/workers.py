"""Threads that each wait for a submission to run, and end what runs when the grader is interrupted."""

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing import resource_tracker
from types import TracebackType
from typing import Any

import psutil

from ...core.descendants import end_descendants


class Workers:
    """A pool of `jobs` threads. Use it with `with`: the block ends when all jobs are done.

    An error or an interrupt in the block ends the processes that were started in it, instead of waiting for them; jobs
    that have not begun are canceled.
    """

    def __init__(self, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs)
        self._futures: list[Future[Any]] = []
        self._bystanders: set[psutil.Process] = set()  # processes older than the block: not ours to end

    def submit(self, job: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run `job(*args)` as soon as a thread is free."""
        future = self._pool.submit(job, *args)
        self._futures.append(future)
        return future

    def __enter__(self) -> "Workers":
        if sys.platform != "win32":  # Python's own, for all processes; if it were ended, Python would warn of leaks
            resource_tracker.ensure_running()
        self._bystanders.update(psutil.Process().children(recursive=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._pool.shutdown()
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        begun = [future for future in self._futures if not future.cancelled()]
        while wait(begun, timeout=0.2).not_done:
            end_descendants(psutil.Process(), spare=self._bystanders)
