"""A log of all-reduces: when each was called, when the call returned, and when its result arrived."""

import time
from types import TracebackType
from typing import Any, NamedTuple

import torch.distributed as dist


class Entry(NamedTuple):
    """One all-reduce; times in seconds since the log was opened.

    Attributes:
        nbytes: of the message.
        asked: when it was called.
        back: when the call returned and the program continued.
        answered: when the sum had arrived.
    """

    nbytes: int
    asked: float
    back: float
    answered: float


class AllReduceLog:
    """Records every `dist.all_reduce` in its `with` block, on this rank.

    Gloo's own thread records when a result arrives, by the clock of the CPU. (NCCL's results are events on the GPU;
    use a profiler there.)

    Attributes:
        entries: one for each all-reduce, in the order of the calls; complete when the block has ended.
        computed: when the backward pass was over, that is, when `note_computed` was called.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.computed = 0.0
        self._start, self._original, self._waiting = 0.0, dist.all_reduce, []

    def __enter__(self) -> "AllReduceLog":
        self._start, self._original = time.perf_counter(), dist.all_reduce
        dist.all_reduce = self._all_reduce
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        dist.all_reduce, self._original = self._original, None
        for nbytes, asked, back, answered in self._waiting:
            self.entries.append(Entry(nbytes, asked, back, answered.wait() if kind is None else back))
        self._waiting = []  # what is left can be sent to the notebook

    def note_computed(self) -> None:
        """Note that the backward pass is over."""
        self.computed = self._now()

    @property
    def hidden(self) -> float:
        """The share of the messages' time during which the backward pass was computing."""
        under_way = sum(entry.answered - entry.asked for entry in self.entries)
        hidden = sum(max(0.0, min(entry.answered, self.computed) - entry.back) for entry in self.entries)
        return hidden / under_way if under_way else 0.0

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _all_reduce(self, tensor: Any, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        asked = self._now()
        work = self._original(tensor, *args, async_op=True, **kwargs)
        answered = work.get_future().then(lambda _: self._now())
        if not async_op:
            work.wait()
        self._waiting.append((tensor.nbytes, asked, self._now(), answered))
        return work if async_op else None
