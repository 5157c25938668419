"""A timeline of a backward pass and its all-reduces, from PyTorch's profiler."""

from types import TracebackType
from typing import NamedTuple

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

BACKWARD = "autograd::engine"  # how the names of the backward pass's own events begin


class Entry(NamedTuple):
    """One all-reduce; times in seconds since the backward pass began.

    Attributes:
        asked: when it was called.
        answered: when the sum had arrived.
    """

    asked: float
    answered: float


class AllReduceLog:
    """Profiles its `with` block on this rank: one backward pass, and all-reduces over gloo.

    In gloo's traces an all-reduce lasts from the call until the sum has arrived. (NCCL's kernels are on the GPU's own
    timeline, where `export_chrome_trace` shows them.)

    Attributes:
        entries: one for each all-reduce, in the order of the calls; complete when the block has ended.
        computed: seconds from the beginning of the backward pass to its end.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.computed = 0.0
        self._profile: profile | None = None

    def __enter__(self) -> "AllReduceLog":
        self._profile = profile(activities=[ProfilerActivity.CPU])
        self._profile.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running, self._profile = self._profile, None  # what is left can be sent to the notebook
        if running is not None:
            running.__exit__(kind, error, trace)
            self.read(list(running.events() or ()) if kind is None else [])

    def read(self, events: list[FunctionEvent]) -> None:
        """Take the figures from the events of a trace."""
        passes = [event.time_range for event in events if event.name.startswith(BACKWARD)]
        begin = min((span.start for span in passes), default=0.0)  # microseconds
        self.computed = (max((span.end for span in passes), default=begin) - begin) / 1e6
        spans = sorted((e.time_range.start, e.time_range.end) for e in events if e.name == "gloo:all_reduce")
        self.entries = [Entry((start - begin) / 1e6, (end - begin) / 1e6) for start, end in spans]

    @property
    def hidden(self) -> float:
        """The share of the messages' time during which the backward pass was running."""
        under_way = sum(entry.answered - entry.asked for entry in self.entries)
        hidden = sum(max(0.0, min(entry.answered, self.computed) - entry.asked) for entry in self.entries)
        return hidden / under_way if under_way else 0.0
