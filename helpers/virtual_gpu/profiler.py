"""What profilers report of a pretended GPU: its allocations, and its kernels.

The profiler sees the CPU's allocations, and goes on reporting them as such. To them come those of the pretended GPUs,
with the times at which a storage moved in and out. An operation's kernel takes the time that the CPU took for it. The
work of pretending is left out of a trace.
"""

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.autograd import profiler

from . import memory
from .homes import gpu_device
from .patches import Patches

_PRETENDING = "PythonDispatchMode"
_ALLOCATION = torch._C._profiler._EventType.Allocation


class _Results:
    """A profiler's results with the pretended GPUs' allocations added."""

    def __init__(self, results: Any, changes: list[tuple[int, int, int, int]]) -> None:
        self._results, self._changes = results, changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._results, name)

    def save(self, path: str) -> None:
        """Write Chrome's trace format."""
        self._results.save(path)
        trace = json.loads(Path(path).read_text(encoding="utf-8"))
        trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("name") != _PRETENDING]
        Path(path).write_text(json.dumps(trace), encoding="utf-8")

    def experimental_event_tree(self) -> list[Any]:
        """Return the events; those added have no children."""
        return list(self._results.experimental_event_tree()) + [
            SimpleNamespace(
                tag=_ALLOCATION,
                start_time_ns=when,
                children=[],
                extra_fields=SimpleNamespace(device=gpu_device(index), ptr=address, alloc_size=nbytes),
            )
            for when, address, nbytes, index in self._changes
        ]


def install(patches: Patches) -> None:
    """Keep a log from the start of a profiler to its end."""
    enable, disable = profiler._enable_profiler, profiler._disable_profiler

    def enabled(*args: Any) -> Any:
        memory.log = []
        return enable(*args)

    def disabled() -> Any:
        changes, memory.log = memory.log or [], None
        return _Results(disable(), changes)

    patches.put_all(profiler, {"_enable_profiler": enabled, "_disable_profiler": disabled})
    if memory.machine.kind == "cuda":
        _with_kernels(patches, profiler.profile)


def _with_kernels(patches: Patches, profile: Any) -> None:
    """Let a profiler that is asked for CUDA's activity report kernels."""
    initialise, parse = profile.__init__, profile._parse_kineto_results

    @functools.wraps(initialise)
    def initialised(self: Any, *args: Any, use_device: str | None = None, **options: Any) -> None:
        initialise(self, *args, **options | {"use_cpu": True})
        self.use_device = use_device

    @functools.wraps(parse)
    def parsed(self: Any, *args: Any, **options: Any) -> Any:
        events = parse(self, *args, **options)
        for event in events if self.use_device == "cuda" else ():
            event.use_device, event.is_legacy = "cuda", True  # its kernel is no event of its own
            if event.name.startswith("aten::"):
                event.append_kernel(event.name, 0, event.self_cpu_time_total)
        return events

    patches.put_all(profile, {"__init__": initialised, "_parse_kineto_results": parsed})
