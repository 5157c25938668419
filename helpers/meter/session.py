"""One measurement in progress: the count and the allocator's log, which nested meters share.

Modes and hooks belong to a thread, so each thread has its own session. There is one profiler in a process, so only one
session at a time can have a log; `profiler_lock` says whose it is.
"""

import contextlib
import sys
import threading

import torch

from .allocator_log import AllocatorLog
from .count import Count
from .lifetime import CUDA_ROUNDING, Join, Lifetime

clock = AllocatorLog.clock
profiler_lock = threading.Lock()


class _Current(threading.local):
    session: "Session | None" = None


current = _Current()


def _address(storage: torch.UntypedStorage) -> int:
    """Return where `storage` lies; 0 for the fake tensors with which tensor parallelism plans."""
    return 0 if storage.device.type == "meta" else storage.data_ptr()


class Session:
    """The count and the log of the outermost meter; meters inside it read the same two.

    Args:
        device: where to measure.
        counting: whether to see each operation, and so tell all categories apart.
        logging: whether to read the allocator's log.
    """

    def __init__(self, device: torch.device, counting: bool, logging: bool) -> None:
        self.device, self.counting = device, counting
        self.count = Count(device.type, clock, _address)
        self.log = AllocatorLog(device) if logging else None
        self.began = 0

    def open(self, stack: contextlib.ExitStack) -> None:
        """Begin to count and to log; `stack` gets what ends it."""
        stack.callback(self.count.close)
        if self.device.type == "cuda":  # the log has what happens in this thread; backward on a GPU has its own
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        if self.log:
            self.log.start()
            stack.callback(self.flush)
        self.began = clock()
        if self.counting:
            if "torch._dynamo" in sys.modules:  # else nothing has been compiled, and importing it takes seconds
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            count = self.count
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(count.pack, count.unpack))
            stack.enter_context(count)
        current.session = self
        stack.callback(setattr, current, "session", None)

    def flush(self) -> None:
        """End the log's recording; the log is dropped when another profiler has cut it short."""
        if self.log and not self.log.stop():
            self.log = None

    def lifetimes(self, now: int) -> list[Lifetime]:
        """Return what has lived until `now`: the count's categories, with the log's bytes and times where known."""
        self.count.label_recomputed()
        unexplained = "kernel workspace" if self.counting else "temporaries"
        rounding = CUDA_ROUNDING if self.device.type == "cuda" else 1
        log = self.log.by_address() if self.log else None
        return Join(self.began, now, unexplained, rounding).lifetimes(self.count.blocks, self.count.ops, log)
