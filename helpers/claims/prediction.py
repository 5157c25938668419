"""Commit to a number before the measurement shows it.

A wrong prediction teaches more than a figure that was only read. So every measurement in the labs comes after a guess,
and the difference gets explained.
"""

import math
from dataclasses import dataclass
from numbers import Real

from ..core.units import unit_of_distance, with_unit
from .progress import Guess, remember_guess

ROUNDING = 1e-6  # what rounding leaves of a zero in FP32
FAR = 100  # a factor from here on says less than the distance: a guess of 0.2 where 0.0002 was measured


@dataclass(frozen=True)
class Prediction:
    """A question with a number for an answer.

    Attributes:
        question: what is measured.
        guess: None until the learner makes one.
        unit: of both figures.
        difference: whether zero is an ordinary answer; then how far off the guess is counts, not how many times.

    Raises:
        ValueError: the guess is not a number. So a typo shows in the cell of the guess, before anything is revealed.
    """

    question: str
    guess: float | None
    unit: str
    difference: bool = False

    def __post_init__(self) -> None:
        number = isinstance(self.guess, Real) and not isinstance(self.guess, bool) and math.isfinite(self.guess)
        if self.guess is not None and not number:
            unit = f" (in {self.unit})" if self.unit else ""
            raise ValueError(f"my_guess is {self.guess!r}. Write a number alone{unit}, such as my_guess = 12.5.")

    def reveal(self, measured: float, how: str = "measured") -> None:
        """Print the guess beside the measured figure (same unit), and how far apart they are.

        Args:
            measured: the figure.
            how: what to call it where it comes from somewhere else: "simulated".
        """
        print(f"{self.question}: {how} {with_unit(_shown(measured), self.unit)}")
        if self.guess is not None:
            remember_guess(self.question, Guess(float(self.guess), float(measured), self.unit, self.difference))
        if self.guess is None:
            print("  You have not guessed. Set my_guess to a number; a wrong guess costs nothing.")
        else:
            print(f"  You said {with_unit(_shown(self.guess), self.unit)}: {self._judged(measured)}.")

    def _judged(self, measured: float) -> str:
        """Say how far the guess is from the figure: in words, by a factor or by a distance."""
        off, ratio = abs(self.guess - measured), self.guess / measured if measured else 0.0
        if is_exact(self.guess, measured):
            return "right, up to rounding" if self.guess == 0 != measured else "exactly right"
        if self.difference or ratio <= 0:
            return f"off by {with_unit(_rounded(off), unit_of_distance(self.unit) if self.difference else '')}"
        if abs(ratio - 1) <= 0.1:
            return "within 10%"
        factor = max(ratio, 1 / ratio)
        if factor >= FAR:
            return f"off by {_rounded(off)}, a factor of {_rounded(factor)}"
        more, less = ("high", "low") if measured > 0 else ("far below zero", "close to zero")
        return f"{factor:.2f}x too {more if ratio >= 1 else less}"


def is_exact(guess: float, measured: float) -> bool:
    """Return whether a guess is the figure in the digits that are shown, or in three if it has decimals."""
    if guess == 0:
        return abs(measured) < ROUNDING
    return _shown(guess) == _shown(measured) or (guess != int(guess) and f"{guess:.3g}" == f"{measured:.3g}")


def _rounded(figure: float) -> str:
    """Write two digits, or all before the point: 0.2, 8.2, 15, 1,273."""
    return f"{figure:,.0f}" if figure >= 10 else f"{figure:.2g}"


def _shown(figure: float) -> str:
    """Write four digits, or all of a whole number: 0.4381, 16,384, 65,150."""
    if not 1e4 <= abs(figure) < 1e12:
        return f"{figure:.4g}"
    return f"{figure if figure == int(figure) else float(f'{figure:.4g}'):,.0f}"
