"""Hand-ins on many machines: a Dask scheduler deals them out to workers, each of which grades as one machine does.

The gradebook stays here. A worker that dies, a scheduler that is restarted, a network that fails: what had not come
back is handed out again, and what had is in the store. A worker that would grade differently gets nothing.
"""

import atexit
import contextlib
import json
import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import asdict
from functools import cache, lru_cache
from typing import Any

from distributed import Client, get_worker
from distributed.client import FutureCancelledError
from distributed.comm import CommClosedError
from rich.console import Console

from ..build.source import sources
from .bench import Bench
from .intake.hand_in import HandIn
from .judge.result import Result
from .options import GradeError
from .run.sandbox import find_bubblewrap
from .run.warm import WarmServers
from .store.conditions import Conditions, course_version

_one_at_a_time = threading.Lock()
AHEAD = 2  # hand-ins handed out for each thread of a worker, so that none waits for the network
_LOST = (CancelledError, FutureCancelledError, CommClosedError, TimeoutError)


class UnfitWorkerError(Exception):
    """A worker cannot grade. Its address, and why."""


class Cluster:
    """The workers of one scheduler. Use it with `with`: the block ends the connection.

    Args:
        address: such as "tcp://10.0.0.1:8786".
        console: hears, a line each, which workers get nothing and why, and what the run waits for.

    Raises:
        GradeError: no scheduler answers there.
    """

    def __init__(self, address: str, conditions: Conditions, console: Console) -> None:
        self._address, self._conditions, self._console = address, conditions, console
        self._unfit: dict[str, str] = {}  # address of a worker: why
        self._fit: set[str] = set()
        self._said = ""
        try:
            self._client = self._connected()
        except (OSError, ValueError) as error:
            raise GradeError(f"No Dask scheduler answers at {address}: {_line(error)}.") from None

    def graded(self, hand_ins: Mapping[int, HandIn]) -> Iterator[tuple[int, Future[Result]]]:
        """Grade `hand_ins`; yield the key of each with its result or error, as they come back."""
        waiting, out = deque(hand_ins), {}  # out: the key, the connection and the workers that may run it, by future
        while waiting or out:
            workers = self._workers(len(waiting) + len(out))
            executor = self._client.get_executor(workers=list(workers), allow_other_workers=False, pure=False)
            while waiting and len(out) < AHEAD * sum(workers.values()):
                place = waiting.popleft()
                future = executor.submit(_grade, _packed(hand_ins[place]), asdict(self._conditions))
                out[future] = place, self._client, set(workers)
            done = wait(out, timeout=1, return_when=FIRST_COMPLETED).done
            stranded = {
                future
                for future, (_, client, fit) in out.items()
                if client is not self._client or not fit & workers.keys()
            }
            for future in done | stranded:
                place, *_ = out.pop(future)
                if not future.done() or self._came_to_nothing(future):
                    future.cancel()
                    waiting.appendleft(place)
                else:
                    yield place, _unpacked(future)

    def _came_to_nothing(self, future: Future) -> bool:
        """Say whether a hand-in is to be handed out again, for no fault of its own."""
        if future.cancelled():
            return True
        error = future.exception()
        if isinstance(error, UnfitWorkerError):
            self._refuse(*error.args)
        return isinstance(error, (UnfitWorkerError, *_LOST))

    def _workers(self, left: int) -> dict[str, int]:
        """Return the threads of each worker that can grade, by address. Waits until there is one."""
        while True:
            try:
                if self._client.status != "running":
                    raise OSError("the connection was lost")
                workers = self._client.scheduler_info(n_workers=-1)["workers"]
                self._look_at(workers.keys() - self._fit - self._unfit.keys())
                if fit := {address: workers[address]["nthreads"] for address in workers.keys() & self._fit}:
                    self._said = ""
                    return fit
                self._say(f"Waiting for a worker that can grade; {left} hand-ins are left.")
            except (OSError, RuntimeError, *_LOST):
                self._say(f"Waiting for the scheduler at {self._address}; {left} hand-ins are left.")
                with contextlib.suppress(Exception):  # it is gone, and that may be said in many ways
                    self._client.close(timeout=1)
                with contextlib.suppress(OSError):
                    self._client = self._connected()
            time.sleep(1)

    def _connected(self) -> Client:
        self._fit.clear()
        return Client(self._address, timeout=5, set_as_default=False)

    def _look_at(self, new: set[str]) -> None:
        """Sort workers that nobody has seen yet into those that can grade and those that get nothing."""
        for address in sorted(new):
            try:
                about = self._client.run(about_worker, workers=[address])[address]
            except (OSError, *_LOST):  # it has just gone
                continue
            except Exception as error:  # whatever is installed there
                about = error
            why = self._objection(about)
            if why:
                self._refuse(address, why)
            else:
                self._fit.add(address)

    def _objection(self, about: dict[str, Any] | Exception) -> str:
        """Say why a worker cannot grade; "" if it can."""
        if not isinstance(about, dict):
            return f"the course is not installed there, or in another version ({_line(about)})"
        if about["course"] != self._conditions.course:
            return f"its course is {about['course']}, here it is {self._conditions.course}"
        if self._conditions.sandbox and not about["sandbox"]:
            return "it has no sandbox (bubblewrap is missing, or may not make namespaces)"
        if about["daemon"]:
            return "its nanny does not let it start processes; start it with --no-nanny"
        return ""

    def _refuse(self, address: str, why: str) -> None:
        self._fit.discard(address)
        if self._unfit.setdefault(address, why) is why:
            self._console.print(f"The worker {address} gets no hand-ins: {why}.", markup=False, soft_wrap=True)

    def _say(self, words: str) -> None:
        if words != self._said:
            self._console.print(words, markup=False, soft_wrap=True)
        self._said = words

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *of_the_block: object) -> None:
        with contextlib.suppress(Exception):  # the scheduler may be gone
            self._client.close(timeout=5)


def about_worker() -> dict[str, Any]:
    """Say what decides whether a worker can grade. Runs on the worker."""
    sandbox, daemon = find_bubblewrap() is not None, multiprocessing.current_process().daemon
    return {"course": course_version(), "sandbox": sandbox, "daemon": daemon}


def _packed(hand_in: HandIn) -> bytes:
    fields = {"student": hand_in.student, "answers": hand_in.answers, "flags": hand_in.flags}
    return json.dumps({"exercise": hand_in.source.exercise, "fields": fields}).encode()


def _unpacked(future: Future[bytes]) -> Future[Result]:
    """Return a finished future of the result, which came back as bytes."""
    finished: Future[Result] = Future()
    try:
        finished.set_result(Result.from_json(json.loads(future.result())))
    except Exception as error:  # as a thread would have raised it
        finished.set_exception(error)
    return finished


def _grade(data: bytes, conditions: dict[str, Any]) -> bytes:
    """Grade one hand-in on this worker."""
    packed = json.loads(data)
    source = next(source for source in sources() if source.exercise == packed["exercise"])
    try:
        result = _bench(Conditions(**conditions)).grade(HandIn(source=source, **packed["fields"]))
    except GradeError as error:  # the reference fails here
        raise UnfitWorkerError(get_worker().address, str(error).rstrip(".")) from None
    return json.dumps(asdict(result)).encode()


def _bench(conditions: Conditions) -> Bench:
    with _one_at_a_time:  # a worker has several threads
        return _bench_for(conditions, _servers())


@lru_cache(maxsize=1)
def _bench_for(conditions: Conditions, servers: WarmServers) -> Bench:
    return Bench(conditions, servers)


@cache
def _servers() -> WarmServers:
    """Return the warm servers of this worker, which go on until it ends."""
    kept = contextlib.ExitStack()
    atexit.register(kept.close)
    return kept.enter_context(WarmServers())


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".")
