"""Streams and events. All work is done at once, so nothing has to be waited for."""

import time
from typing import Any

import torch

from .patches import Patches


class Event:
    """A mark in time."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._timing, self._time = enable_timing, None

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        self._time = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait(self, stream: Any = None) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Say that all is done."""
        return True

    def elapsed_time(self, other: "Event") -> float:
        """Return the milliseconds until `other`.

        Raises:
            ValueError: an event without timing, or one that was never recorded.
        """
        if not (self._timing and other._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._time is None or other._time is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return 1e3 * (other._time - self._time)


class Stream:
    """A queue that is always empty."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        index = torch.cuda._utils._get_device_index(device, optional=True)
        self.device, self.priority, self.cuda_stream, self.stream_id = torch.device("cuda", index), priority, 0, 0
        self.device_index, self.device_type = index, 1

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Wait for nothing."""

    def wait_event(self, event: Any) -> None:
        """Wait for nothing."""

    def record_event(self, event: Event | None = None) -> Event:
        """Return an event that has happened."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Say that all is done."""
        return True

    def __enter__(self) -> "Stream":
        self._before = _current.get(self.device_index)
        _current[self.device_index] = self
        return self

    def __exit__(self, *error: object) -> None:
        _current[self.device_index] = self._before

    def is_capturing(self) -> bool:
        """Say that no CUDA graph is being recorded."""
        return False


_current: dict[int, Stream | None] = {}


def _default_stream(device: Any = None) -> Stream:
    return Stream(device)


def _current_stream(device: Any = None) -> Stream:
    index = torch.cuda._utils._get_device_index(device, optional=True)
    return _current.get(index) or Stream(index)


def _set_stream(stream: Stream | None) -> None:
    if stream is not None:
        _current[stream.device_index] = stream


def install(patches: Patches) -> None:
    """Put them into torch.cuda."""
    kinds = {"Stream": Stream, "Event": Event}
    patches.put_all(torch.cuda.streams, kinds)
    functions = {
        "ExternalStream": Stream,
        "current_stream": _current_stream,
        "default_stream": _default_stream,
        "set_stream": _set_stream,
        "is_current_stream_capturing": lambda: False,
    }
    patches.put_all(torch.cuda, kinds | functions)
    patches.put_all(torch._C, {"_accelerator_getStream": _current_stream, "_accelerator_setStream": _set_stream})
    patches.put_all(torch.Tensor, {"record_stream": lambda self, stream: None})
    patches.later(_current.clear)
