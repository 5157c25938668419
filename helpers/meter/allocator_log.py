"""The allocator's own log: every allocation and release, as PyTorch's profiler reports them."""

import contextlib
import time
import warnings
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import _disable_current_modes

_MARKS = 3  # allocations made to align the two clocks
_MARK_BYTES = 3 * 512


@dataclass(slots=True, eq=False)
class Allocation:
    """One allocation, from `start` to `end` (ns of `AllocatorLog.clock`; None: it outlived the log)."""

    start: int
    end: int | None
    nbytes: int


class AllocatorLog:
    """Records what the allocator of `device` does between `start` and `stop`; it can be started again.

    The profiler has a clock of its own. A few small allocations, found in its log, align the two by the time at which
    each is over; the time of day would be too coarse for that on some systems. What is left of an error makes memory
    seem to come and go late, never early: the count sees a tensor only when its operation is over, and so finds it in
    the log all the same, but what seemed to be gone already it would take for memory from elsewhere.
    """

    clock = staticmethod(time.perf_counter_ns)

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[tuple[int, int, int]] = []  # (time, address, bytes: negative when released)

    def start(self) -> None:
        """Begin recording. No other profiler may be running."""
        # Without acc_events: with it, the profiler makes a Python event of every record, which takes longer than the
        # rest of the measurement. The meter does not use these events.
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with warnings.catch_warnings():  # PyTorch 2.10 to 2.12 warn that these events are not kept
            warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
            self._profiler.__enter__()
        # The profiler hands out trees of events, and drops a tree whose root is an event of a GPU, as each release
        # between two operations would be. So all events get a root on the CPU.
        self._root = torch._C._profiler._RecordFunctionFast("MemoryMeter")
        self._root.__enter__()
        self._marks = []
        with _disable_current_modes():  # a mode of ours would run between the release and the clock
            for _ in range(_MARKS):
                torch.empty(_MARK_BYTES, dtype=torch.uint8, device=self._device)  # released at once
                self._marks.append(self.clock())

    def stop(self) -> bool:
        """End the recording. Returns False if another profiler has cut it short."""
        complete = torch.autograd._profiler_enabled()
        self._root.__exit__(None, None, None)
        with contextlib.nullcontext() if complete else contextlib.suppress(RuntimeError):  # of PyTorch 2.9
            self._profiler.__exit__(None, None, None)
        if complete:
            events = sorted(self._read(), key=lambda event: event[0])
            marks = [when for when, _, nbytes in events if nbytes == -_MARK_BYTES][:_MARKS]
            offset = max((theirs - ours for theirs, ours in zip(marks, self._marks, strict=False)), default=0)
            self._events += [(when - offset, address, nbytes) for when, address, nbytes in events]
        del self._profiler, self._root
        return complete

    def _read(self) -> list[tuple[int, int, int]]:
        events, stack = [], list(self._profiler.profiler.kineto_results.experimental_event_tree())
        while stack:
            node = stack.pop()
            stack += node.children
            if node.tag == torch._C._profiler._EventType.Allocation:
                fields = node.extra_fields
                if fields.device.type == self._device.type:
                    events.append((node.start_time_ns, fields.ptr, fields.alloc_size))
        return events

    def by_address(self) -> dict[int, list[Allocation]]:
        """Return the allocations at each address, in order of time."""
        allocations: dict[int, list[Allocation]] = defaultdict(list)
        for when, address, nbytes in self._events:
            if nbytes > 0:
                allocations[address].append(Allocation(when, None, nbytes))
            elif allocations[address]:  # else: the end of something older, which only the count may have seen
                allocations[address][-1].end = when
        return allocations
