"""Files for PyTorch's memory viewer (pytorch.org/memory_viz).

`torch.cuda.memory._dump_snapshot` writes such files from CUDA's allocator. This one is written from what the meter saw,
on any device, with the operation and the module where CUDA's has the lines of the program.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .lifetime import Lifetime


def write_snapshot(path: str | Path, lifetimes: Sequence[Lifetime], began: int) -> None:
    """Write `lifetimes` to `path`; what is older than `began` (ns) appears to be allocated then."""
    trace: list[dict[str, Any]] = []
    for number, life in enumerate(lifetimes):
        frame = {"name": life.op.name, "filename": f"{life.category}; {life.op.phase} {life.op.module}", "line": 0}
        event = {"addr": (number + 1) << 32, "size": life.nbytes, "stream": 0, "frames": [frame]}
        trace.append(event | {"action": "alloc", "time_us": max(life.start, began) // 1000})
        if life.end is not None:
            trace.append(event | {"action": "free_completed", "time_us": life.end // 1000})
    trace.sort(key=lambda event: event["time_us"])
    snapshot = {"segments": [], "device_traces": [trace], "allocator_settings": {}}
    Path(path).write_bytes(pickle.dumps(snapshot))
