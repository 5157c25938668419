"""Traces that others have recorded on real GPUs, for machines that have none.

`gpu_traces.json.gz` holds one training step each of two traces from the tests of Meta's Holistic Trace Analysis (MIT
License, Copyright (c) Meta Platforms, Inc. and affiliates): every complete event that lies within one `ProfilerStep#N`.
Of each event the file keeps the first 60 characters of its name, its category, process, thread, start and duration.
"""

import functools
import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_FILE = Path(__file__).with_name("gpu_traces.json.gz")


@functools.cache
def _stored() -> dict[str, Any]:
    return json.loads(gzip.decompress(_FILE.read_bytes()))


def gpu_trace(gpu: str) -> list[Event]:
    """Return the events of a training step on a real GPU, as the profiler exports them, in order of their start.

    The event of the step itself is named "step" here; the profiler calls it "ProfilerStep#N". Times (`ts`, `dur`) are
    in microseconds, counted from the start of the step.

    Args:
        gpu: "v100" or "a100".

    Raises:
        KeyError: there is no such trace.
    """
    stored = _stored()["traces"][gpu]
    events, now = [], 0
    for name, category, lane, after, duration in zip(*stored["columns"].values(), strict=True):
        now += after
        process, thread = stored["lanes"][lane]
        events.append(
            {
                "ph": "X",
                "cat": stored["categories"][category],
                "name": stored["names"][name],
                "pid": process,
                "tid": thread,
                "ts": now / 1000,
                "dur": duration / 1000,
            }
        )
    return events


def gpu_trace_source(gpu: str) -> str:
    """Return where the trace is from: the GPU's name, and the file in the repository that published it."""
    stored = _stored()
    trace = stored["traces"][gpu]
    return f"{trace['device']}, {trace['step']} of {stored['source']}/blob/{stored['commit'][:12]}/{trace['file']}"
