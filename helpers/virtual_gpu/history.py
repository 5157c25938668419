"""What `torch.cuda.memory._record_memory_history` records: each allocation, with its stack of Python frames."""

import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

_HERE = str(Path(__file__).parent)


class History:
    """The events of all GPUs, of which `torch.cuda.memory._dump_snapshot` writes a list for each.

    Attributes:
        records: whether anything is added.
    """

    def __init__(self) -> None:
        self.records = False
        self._events: deque[tuple[int, dict[str, Any]]] = deque()

    def start(self, enabled: str | None, context: str | None, stacks: str, limit: int, *_: object) -> None:
        """Begin anew, or stop: `torch._C._cuda_record_memory_history`."""
        self.records = enabled is not None
        self._events = deque(maxlen=min(limit, 2**31))

    def add(self, index: int, action: str, address: int, nbytes: int, **more: int) -> None:
        """Append an event of GPU `index`, if this records; `more` of its fields have names."""
        if self.records:
            where = {"addr": address, "size": nbytes, "stream": 0, "time_us": time.time_ns() // 1000}
            self._events.append((index, {"action": action} | where | more | {"frames": _frames()}))

    def of(self, index: int) -> list[dict[str, Any]]:
        """Return the events of GPU `index`."""
        return [event for gpu, event in self._events if gpu == index]


def _frames() -> list[dict[str, Any]]:
    """Return the stack, the innermost frame first, without what pretends."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_HERE):
            frames.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    return frames
