"""One measured figure, and the claim that it tests."""

import math
from dataclasses import dataclass

from ..core.units import with_unit


@dataclass(frozen=True)
class Measurement:
    """One claim, measured once; or, if `low` and `high` are infinite, a figure that nobody has made a claim about.

    Attributes:
        claim: number in the syllabus, e.g. "C7".
        said: the claim in a few words, or what the figure is.
        subject: what it was measured on: model, batch, number format.
        measured: the figure, in `unit`; None where the machine could not measure it.
        low, high: the claim held if `low <= measured <= high`.
        device: where it was measured.
    """

    claim: str
    said: str
    subject: str
    measured: float | None
    unit: str
    low: float
    high: float
    device: str

    @property
    def tests(self) -> bool:
        """Whether it tests a claim, and is not only a figure."""
        return not (math.isinf(self.low) and math.isinf(self.high))

    @property
    def held(self) -> bool:
        """Whether the measured figure lies within the claim's limits."""
        return self.measured is not None and self.low <= self.measured <= self.high

    @property
    def figure(self) -> str:
        """The figure as printed: three digits and the unit."""
        return "-" if self.measured is None else with_unit(f"{self.measured:.3g}", self.unit)

    @property
    def verdict(self) -> str:
        """What the measurement says of the claim."""
        if self.measured is None:
            return "not measured here"
        if not self.tests:
            return "figure only"
        return "held" if self.held else "did not hold"
