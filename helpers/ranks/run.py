"""Real ranks from a notebook cell.

>>> run = run_ranks(fn, 2, data)  # doctest: +SKIP
>>> run.results[1], run.peak_bytes[1]  # doctest: +SKIP

Each rank is a process of its own with a process group open: NCCL where there is a GPU for each rank, else gloo on the
CPU. The collectives, the deadlocks and the bytes are those of a cluster; only the speed is not.

Functions defined in a cell travel by cloudpickle. Ranks find each other through a file of this run, so two runs cannot
collide on a port, and no name server is needed. On Linux ranks are forked from a server that has imported PyTorch and
done nothing else, which takes milliseconds; elsewhere they start afresh.
"""

import contextlib
import copyreg
import functools
import io
import opcode
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from ..core.device import ranks_device
from ..core.units import human_bytes
from .failure import failure, overdue
from .rank import LEAVE, Rank, ask_positions, read_messages
from .screen import Screen
from .worker import Task

START_LIMIT = 120.0  # seconds for processes to start and to find each other, on a slow machine
PATIENCE = 3  # times the time limit, for ranks that compute
PULSE = 3.0  # seconds over which is looked whether they do
AT_WORK = 0.02  # of a processor, all ranks together; those that wait take less
LOOPBACK = {"linux": "lo", "darwin": "lo0"}

# Cloudpickle takes along what a function names as a module of torch; `torch.ops` looks like one and cannot be pickled.
copyreg.pickle(type(torch.ops), lambda _: (getattr, (torch, "ops")))

# A class inside a function may use globals of the function's module in its own lines, and cloudpickle takes along those
# of its methods alone.
cloudpickle.cloudpickle.GLOBAL_OPS += (opcode.opmap["LOAD_NAME"],)


class _Pickler(cloudpickle.Pickler):
    """Takes along what cloudpickle does not: modules without a file, and functions with a cache.

    `once_differentiable` names a module that is an attribute of `torch._C` and nowhere else. A cache is begun anew.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return how to make `obj` again."""
        if isinstance(obj, ModuleType) and obj.__name__ not in sys.modules:
            parent, _, name = obj.__name__.rpartition(".")
            if getattr(sys.modules.get(parent), name, None) is obj:
                return getattr, (sys.modules[parent], name)
        if isinstance(obj, functools._lru_cache_wrapper):
            module = None if obj.__module__ == "__main__" else sys.modules.get(obj.__module__)
            if getattr(module, obj.__name__, None) is not obj:
                return _with_cache, (obj.__wrapped__, obj.cache_parameters())
        return super().reducer_override(obj)


def _with_cache(fn: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    return functools.lru_cache(**parameters)(fn)


def _pickled(work: Any) -> bytes:
    """Return `work` as ranks get it."""
    with io.BytesIO() as file:
        _Pickler(file).dump(work)
        return file.getvalue()


@dataclass(frozen=True)
class RankRun:
    """The results of a run, each list in rank order.

    Attributes:
        results: what the function returned.
        printed: what each rank printed.
        peak_bytes: each rank's peak memory while the function ran; 0 where it was not measured.
        seconds: how long the function took.
    """

    results: list[Any]
    printed: list[str]
    peak_bytes: list[int]
    seconds: list[float]

    def __str__(self) -> str:
        lines = [f"{'rank':>4}{'peak':>12}{'seconds':>9}"]
        for rank, (peak, seconds) in enumerate(zip(self.peak_bytes, self.seconds, strict=True)):
            lines.append(f"{rank:>4}{human_bytes(peak) if peak else '-':>12}{seconds:>9.2f}")
        return "\n".join(lines)


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    device: torch.device | str | None = None,
    timeout: float = 60.0,
    measure: bool = True,
    process_group: bool = True,
    show: bool = True,
) -> RankRun:
    """Call `fn(*args)` in `world_size` processes at once and return what each of them returned.

    Args:
        fn: the work of one rank. `dist.get_rank()` says which; `rank_device()` where. It may be defined in a cell.
        world_size: number of ranks.
        args: for every rank; each gets its own copy.
        device: "cuda" (a GPU for each rank, NCCL) or "cpu" (gloo); default: `ranks_device(world_size)`. Ranks on the
            CPU see no GPU. Give it where runs of several world sizes are compared: `device=ranks_device(4)` for all.
        timeout: seconds that `fn` may take, start-up not counted. Ranks that are still computing then, as on a busy
            machine, get up to three times as long; ranks that wait for each other do not.
        measure: measure each rank's peak memory. False when `fn` measures itself, or is timed.
        process_group: False leaves it to `fn` to open (and close) the process group; the environment says with whom.
        show: show what ranks print, live and at the end.

    Raises:
        RankError: a rank raised, died or took too long. All ranks have been ended then.
        ValueError: `world_size` is below 1, or there is no GPU for each rank where `device` asks for them.
    """
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; at least one rank is needed.")
    on = torch.device(device or ranks_device(world_size)).type
    if on not in ("cpu", ranks_device(world_size).type):
        raise ValueError(f"world_size is {world_size} on {on}: this machine has {torch.cuda.device_count()} GPUs.")
    # A store on a port that the system chose, for work that opens its own group as it would under torchrun.
    store = None if process_group else dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    work = _pickled((fn, args))
    threads = max(1, torch.get_num_threads() // world_size)
    ranks: list[Rank] = []
    with tempfile.TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True) as folder:
        try:
            for number in range(world_size):
                environment = _environment(number, world_size, store.port if store else 0)
                environment |= {"CUDA_VISIBLE_DEVICES": ""} if on == "cpu" else {}
                ranks.append(Rank.start(number, Task(work, environment, threads, folder, process_group, measure)))
            _wait(ranks, timeout, Screen(ranks if show else []))
            for rank in ranks:
                with contextlib.suppress(OSError):  # it has died since it sent its result
                    rank.pipe.send("leave")
            for rank in ranks:
                rank.process.join(LEAVE)
        finally:  # also when the kernel is interrupted
            for rank in ranks:
                rank.end()
    _, results, peaks, seconds = zip(*(rank.outcome for rank in ranks), strict=True)
    printed = ["\n".join(rank.lines) for rank in ranks]
    return RankRun([cloudpickle.loads(result) for result in results], printed, list(peaks), list(seconds))


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """Return the variables that `torchrun` would set, so that one function runs under both."""
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is already running
        "TORCH_FR_BUFFER_SIZE": "2000",  # collectives that the flight recorder remembers
        "RES_OPTIONS": "timeout:1 attempts:1",  # a TCP store asks a name server for 127.0.0.1; it may not answer
    }
    if sys.platform in LOOPBACK:
        variables["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    return variables


class _Pulse:
    """Whether ranks compute, or wait for each other: by the processor time that they take."""

    def __init__(self, ranks: list[Rank]) -> None:
        self._ranks, self.at_work = ranks, False
        self._when, self._taken = time.monotonic(), 0.0

    def feel(self) -> None:
        """Look again, if the last look is long enough ago."""
        passed = time.monotonic() - self._when
        if passed > PULSE:
            taken = sum(rank.cpu_seconds for rank in self._ranks)
            self.at_work = taken - self._taken > AT_WORK * passed
            self._when, self._taken = time.monotonic(), taken


def _wait(ranks: list[Rank], timeout: float, screen: Screen) -> None:
    """Read what ranks send until all have their result.

    Raises:
        RankError: one of them failed, or the time is over.
    """
    limit, all_ready = START_LIMIT, False
    start, pulse = time.monotonic(), _Pulse(ranks)
    while not all(rank.outcome for rank in ranks):
        read_messages(ranks)
        screen.update()
        if not all_ready and all(rank.device for rank in ranks):
            limit, all_ready = timeout, True
            start = time.monotonic()
        pulse.feel()
        late = time.monotonic() - start > limit * (PATIENCE if all_ready and pulse.at_work else 1)
        if any(rank.kind in ("error", "died") for rank in ranks) or late:
            ask_positions(ranks)
            screen.finish()
            raise failure(ranks) or overdue(ranks, limit)
    screen.finish()
    error = failure(ranks)
    if error:
        raise error
