"""Tell whether an answer worked on other threads, where no meter looks: modes and hooks belong to a thread."""

import time

from .watch import Watch

_TICK = 0.05  # seconds; some systems count in steps of 1/64
_SHARE = 0.05
_ASLEEP = 0.0005  # seconds; a thread that only waits does not get there


class Elsewhere:
    """What threads other than this one do from now on. Graded sums run on one thread, so that should be nothing.

    Args:
        watch: hears of threads that answers start.
        device: "cpu" or "cuda"; on a GPU the backward pass has a thread of its own, so that time says nothing.
    """

    def __init__(self, watch: Watch, device: str) -> None:
        self._watch, self._device = watch, device
        self._threads = watch.threads
        self._own, self._others = self._seconds()

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """Return the processor time of this thread, and of all others."""
        own = time.thread_time()
        return own, time.process_time() - own

    def worked(self) -> bool:
        """Say whether the answer has started a thread, or that earlier threads have been busy."""
        own, others = self._seconds()
        allowed = _ASLEEP if self._threads else _TICK + _SHARE * (own - self._own)
        busy = self._device == "cpu" and others - self._others > allowed
        return busy or self._watch.threads > self._threads
