"""How long a step of a recipe will take on one GPU, as far as its work and a roofline tell."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Forecast:
    """The seconds of one optimizer step, and what follows from them.

    Attributes:
        seconds: of the step.
        low, high: between which it should lie: as far apart as published steps lay from their forecasts.
        per_second: tokens or images, by `unit`.
        mfu: model FLOPs utilization: products and attention without recomputation, of causal attention the half that is
            computed, over the dense peak of the data sheet (of this machine: over its fastest measured product).
        bounds: share of the seconds that each bounds: "compute", "memory", "launch" (the host is too slow), "paging".
    """

    seconds: float
    low: float
    high: float
    per_second: float
    unit: str
    mfu: float
    bounds: Mapping[str, float]

    def __str__(self) -> str:
        bound = max(self.bounds, key=lambda name: self.bounds[name])
        seconds, low, high = map(seconds_in_words, (self.seconds, self.low, self.high))
        return (
            f"{seconds} per step ({low} to {high}), "
            f"{_digits(self.per_second)} {self.unit}/s, MFU {self.mfu:.0%}, "
            f"{bound}-bound {self.bounds[bound]:.0%} of the time"
        )


def seconds_in_words(value: float) -> str:
    """Write seconds with three digits: 0.0213 as 21.3 ms."""
    return f"{_digits(value)} s" if value >= 1 else f"{_digits(value * 1e3)} ms"


def _digits(value: float) -> str:
    """Write three digits: 1234 as 1,230."""
    return f"{value:.3g}" if value < 100 else f"{float(f'{value:.3g}'):,.0f}"
