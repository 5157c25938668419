"""Time several functions in turns, and compare each with one of them, round by round.

The speed of a machine changes while a lab runs. If every function runs once in every round, a slow moment meets all of
them, and the quotient of two times of the same round changes less than either time.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..core.device import pick_device
from .timing import once


@dataclass(frozen=True)
class Turns:
    """Seconds that functions took in turns.

    Attributes:
        seconds: by name, an array with one entry per round.
    """

    seconds: dict[str, np.ndarray]

    def more_time(self, name: str, baseline: str = "plain") -> np.ndarray:
        """Return the quartiles of the additional time of `name`, in percent of the baseline in the same round."""
        return np.percentile(100 * (self.seconds[name] / self.seconds[baseline] - 1), (25, 50, 75))


def in_turns(steps: dict[str, Callable[[], object]], rounds: int = 5) -> Turns:
    """Time each of `steps` once per round, after one call that does not count."""
    device = pick_device()
    for step in steps.values():
        step()
    taken = [[once(step, device) for step in steps.values()] for _ in range(rounds)]
    return Turns(dict(zip(steps, np.array(taken).T, strict=True)))
