"""Profiling a training step: total from runs without a profiler, parts from runs with one.

Recording an event takes time, and small operations and Python pay for it, not large kernels. Scaling all parts to the
total would therefore make kernels look faster than they are. Instead the cost of an event is measured, on a tiny
operation that runs with and without the profiler, and taken off each part as often as the part has events. The parts
come from the profiled run of median length. What they and the total then differ by is reported as unexplained.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ..core.device import pick_device, synchronize
from .session import profiler_lock
from .step_profile import Method, Part, StepProfile
from .step_trace import STEP, Stretch, step_stretches
from .step_work import StepWork, part_name, step_work
from .timing import Timing, once

_WARMUP = 2
_TINY, _BATCHES = 200, 5  # calls of a tiny operation, to find what recording an event takes


def profile_step(
    step_fn: Callable[[], object], device: torch.device | None = None, runs: int = 5, trace: Path | None = None
) -> StepProfile:
    """Run a training step several times and return where its seconds go.

    `step_fn` runs 3 + 2·`runs` times: to warm up, alternately without and with the profiler, and once more to count
    FLOPs and bytes. So it must be able to run again, with the next batch or the same one.

    On a GPU the parts are its kernels. On Apple's GPU, which tells the profiler nothing, they are the operations as the
    host calls them. FLOPs and bytes of a compiled step are those of the operations before they were fused.

    Args:
        step_fn: does one step: fetches a batch, runs forward, backward and optimizer.
        device: where; default: the fastest device.
        runs: how many steps to time without and with the profiler.
        trace: where to save the trace of the profiled step; ".json.gz" in the end. Perfetto (ui.perfetto.dev) opens it.

    Raises:
        RuntimeError: if a profiler is running already, here or in a `MemoryMeter`.
    """
    device = device or pick_device()
    with _alone():
        for _ in range(_WARMUP):
            step_fn()
        event_seconds = _event_seconds()
        pairs = [(once(step_fn, device), _recorded(step_fn, device)) for _ in range(runs)]
        work = step_work(step_fn)
    plain, recorded = zip(*pairs, strict=True)
    profiler, _ = sorted(recorded, key=lambda pair: pair[1])[runs // 2]
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    stretches, has_kernels = step_stretches(profiler.profiler.kineto_results.events())
    return StepProfile(
        device.type,
        _method(device, has_kernels),
        Timing(plain),
        tuple(_parts(stretches, work, event_seconds)),
        Timing(tuple(seconds for _, seconds in recorded)),
        sum(stretch.events for stretch in stretches),
        event_seconds,
        tuple(_notes(device, has_kernels, stretches)),
    )


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold the one profiler of this process."""
    if torch.autograd._profiler_enabled() or not profiler_lock.acquire(blocking=False):
        holders = "torch.profiler, a MemoryMeter, or run_ranks with measure=True"
        raise RuntimeError(f"A profiler is already running ({holders}); end it first.")
    try:
        yield
    finally:
        profiler_lock.release()


# -- recording


def _recorded(step_fn: Callable[[], object], device: torch.device) -> tuple[profile, float]:
    """Run a step under the profiler; return the profiler and the step's seconds."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler:
        torch.zeros(1, device=device)  # the first call after the start of a profiler is slow
        synchronize(device)
        start = time.perf_counter()
        with record_function(STEP):
            step_fn()
            synchronize(device)
        seconds = time.perf_counter() - start
    return profiler, seconds


def _event_seconds() -> float:
    """Return what it takes to record an event: a tiny operation with the profiler, less one without."""
    tiny = torch.zeros(1)

    def least() -> float:
        batches = [once(lambda: [tiny.neg_() for _ in range(_TINY)], tiny.device) for _ in range(_BATCHES)]
        return min(batches) / _TINY

    without = least()
    with profile(activities=[ProfilerActivity.CPU]):
        recorded = least()
    return max(0.0, recorded - without)


# -- adding up


def _parts(stretches: Sequence[Stretch], work: StepWork, event_seconds: float) -> Iterator[Part]:
    """Yield a part for each phase and name, longest first, with the work that the dispatcher saw under this name."""
    nanoseconds: Counter[tuple] = Counter()
    calls: Counter[tuple] = Counter()
    for stretch in stretches:
        key = stretch.phase, stretch.kind, part_name(stretch.name)
        nanoseconds[key] += max(0.0, stretch.end - stretch.start - 1e9 * event_seconds * stretch.events)
        calls[key] += 1
    for key in work.keys() - nanoseconds.keys():
        nanoseconds[key] = 0
    for key, total in nanoseconds.most_common():
        count, flops, moved = work.get(key, (calls[key], 0, 0))
        yield Part(*key, total / 1e9, count, flops, moved)


def _method(device: torch.device, has_kernels: bool) -> Method:
    if has_kernels:
        return "kernels"
    return "operations" if device.type == "cpu" else "host"


def _notes(device: torch.device, has_kernels: bool, stretches: Sequence[Stretch]) -> Iterator[str]:
    if device.type != "cpu" and not has_kernels:
        yield f"The profiler saw no kernels of this device ({device.type}): these are the times of the host."
    if any(stretch.name == "compiled" for stretch in stretches):
        yield "The model is compiled: its FLOPs and bytes are those of the operations before they were fused."
