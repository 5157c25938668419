"""The progress of a search as one bar that never goes back."""

from .best import Tell

_PARTS = {"ruling out by bounds": (0.0, 0.1), "trying common layouts": (0.6, 1.0)}  # of the bar, about as of the time
_PLANNING = (0.1, 0.6)


class Steady:
    """Hears the progress of each stage, and tells that of the whole, which only grows.

    Bounds come closer while layouts are planned, so the share of those that are done may fall. The bar then waits.

    Args:
        tell: hears of the whole: the stage, and how much is done of 1; 0 of 0 while layouts are listed.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell, self._done = tell, 0.0

    def __call__(self, what: str, done: float, of: float) -> None:
        """Report that `done` of `of` parts of the stage `what` are done; `of` is 0 while their number is unknown."""
        if not of:
            self._tell(what, done, of)
            return
        start, end = _PARTS.get(what, _PLANNING)
        self._done = max(self._done, start + (end - start) * done / of)
        self._tell(what, self._done, 1.0)
