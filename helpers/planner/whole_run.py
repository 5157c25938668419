"""What a whole run takes: days, GPU-hours and money, with the time that failures and checkpoints cost."""

import math
import re
from dataclasses import dataclass
from typing import Any

from .config import RecipeError
from .goodput import best_interval, goodput

DAY, HOUR = 86_400.0, 3600.0
# "The Llama 3 Herd of Models" (arXiv 2407.21783), section 3.3.4: 419 unexpected interruptions of 16,384 GPUs in 54
# days. More than 90 % of the time was of use; with the 47 planned ones, that leaves each interruption a quarter of an
# hour, lost work included: a restart of ten minutes. Section 3.3.1: its storage takes 2 TB/s for these GPUs.
FAILURES_PER_GPU_DAY = 419 / (16_384 * 54)
RESTART_SECONDS = 600.0
STORAGE_BYTES_PER_GPU = 2e12 / 16_384
BYTES_PER_PARAMETER = 12  # FP32 weights and AdamW's two moments
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def read_tokens(text: str) -> float:
    """Return the tokens of a run: "15T" are 15e12.

    Raises:
        RecipeError: it is no number of tokens.
    """
    found = re.fullmatch(r"(\d[\d,]*\.?\d*(?:e\+?\d+)?)\s*([kmbgt]?)", text.strip().lower())
    if not found:
        raise RecipeError(f"--run-tokens is {text!r}; give a number of tokens, like 300B or 15T.")
    return float(found[1].replace(",", "")) * _UNITS[found[2]]


def check_numbers(
    tokens: float, failures_per_gpu_day: float | None, save: float | None, restart: float | None, price: float | None
) -> None:
    """Refuse numbers of a `WholeRun` that make no sense; None was not given.

    Raises:
        RecipeError: one of them; the message names its option.
    """
    for words, value, least in (
        ("run-tokens", tokens, 1.0),
        ("failures-per-gpu-day", failures_per_gpu_day, 0.0),
        ("checkpoint-seconds", save, 1e-3),
        ("restart-seconds", restart, 0.0),
        ("price-per-gpu-hour", price, 0.0),
    ):
        if value is not None and not least <= value < math.inf:
            raise RecipeError(f"--{words} is {value:g}; it must be at least {least:g}, and finite.")


@dataclass(frozen=True)
class WholeRun:
    """A run of many steps on GPUs of which some fail.

    Attributes:
        tokens: that it trains on.
        gpus: that work on it.
        parameters: of the model, whose state a checkpoint holds.
        tokens_per_second: of all GPUs while they train: what is expected, at least, and at most.
        failures_per_gpu_day: that stop the job, for each GPU and day.
        save: seconds that training stands still for a checkpoint; None: until the state is written, at the rate for
            each GPU that Llama 3's storage sustained.
        restart: seconds from a failure until the job trains again.
        price: of a GPU for an hour, in any currency; None: unknown.

    Raises:
        RecipeError: a number that makes no sense.
    """

    tokens: float
    gpus: int
    parameters: float
    tokens_per_second: tuple[float, float, float]
    failures_per_gpu_day: float = FAILURES_PER_GPU_DAY
    save: float | None = None
    restart: float = RESTART_SECONDS
    price: float | None = None

    def __post_init__(self) -> None:
        check_numbers(self.tokens, self.failures_per_gpu_day, self.save_seconds, self.restart, self.price)
        if not self.goodput > 0:
            raise RecipeError("With so many failures, the job never reaches its next checkpoint, so it never ends.")

    @property
    def save_seconds(self) -> float:
        """Seconds that training stands still for a checkpoint."""
        if self.save is not None:
            return self.save
        return BYTES_PER_PARAMETER * self.parameters / (self.gpus * STORAGE_BYTES_PER_GPU)

    @property
    def mtbf(self) -> float:
        """Mean seconds between two failures of the job."""
        failures = self.gpus * self.failures_per_gpu_day
        return DAY / failures if failures else math.inf

    @property
    def interval(self) -> float:
        """Seconds between two checkpoints that lose least; the whole run where nothing fails."""
        training = self.tokens / self.tokens_per_second[0]
        return training if self.mtbf == math.inf else min(training, best_interval(self.save_seconds, self.mtbf))

    @property
    def goodput(self) -> float:
        """Share of the time that is of use, with a checkpoint every `interval` seconds."""
        return goodput(self.interval, self.save_seconds, self.mtbf, self.restart)

    @property
    def seconds(self) -> tuple[float, float, float]:
        """Seconds from the first step to the last: what is expected, at least, and at most."""
        expected, longest, shortest = (self.tokens / rate / self.goodput for rate in self.tokens_per_second)
        return expected, shortest, longest

    @property
    def gpu_hours(self) -> tuple[float, float, float]:
        """GPU-hours that are paid for: what is expected, at least, and at most."""
        expected, least, most = (self.gpus * seconds / HOUR for seconds in self.seconds)
        return expected, least, most

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain lists and numbers."""
        hours = self.gpu_hours
        return {
            "tokens": self.tokens,
            "failures_per_gpu_day": self.failures_per_gpu_day,
            "seconds_between_failures": None if self.mtbf == math.inf else self.mtbf,
            "checkpoint_seconds": self.save_seconds,
            "restart_seconds": self.restart,
            "best_interval_seconds": self.interval,
            "goodput": self.goodput,
            "seconds": self.seconds[0],
            "seconds_interval": list(self.seconds[1:]),
            "gpu_hours": hours[0],
            "gpu_hours_interval": list(hours[1:]),
            "price_per_gpu_hour": self.price,
            "cost": None if self.price is None else hours[0] * self.price,
            "cost_interval": None if self.price is None else [hour * self.price for hour in hours[1:]],
        }

    def __str__(self) -> str:
        days, hours = ([value / unit for value in self.seconds] for unit in (DAY, HOUR / self.gpus))
        failing = "no failures"
        if self.mtbf < math.inf:
            failing = f"a failure every {_long(self.mtbf)}, then {self.restart:,.0f} s to restart"
        lines = [
            f"  {_count(self.tokens)} tokens take {days[0]:,.3g} days ({days[1]:,.3g} to {days[2]:,.3g}), "
            f"{hours[0]:,.0f} GPU-hours ({hours[1]:,.0f} to {hours[2]:,.0f})",
            f"  {failing}; saving for {self.save_seconds:,.3g} s every {_long(self.interval)} loses the least time: "
            f"goodput {self.goodput:.1%}",
        ]
        if self.price is not None:
            costs = [hour * self.price for hour in hours]
            lines.append(f"  at {self.price:g} per GPU-hour: {costs[0]:,.0f} ({costs[1]:,.0f} to {costs[2]:,.0f})")
        return "\n".join(lines)


def _count(tokens: float) -> str:
    """Return a number of tokens in decimal units, as `--run-tokens` takes it."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if tokens >= unit:
            return f"{tokens / unit:.4g}{name}"
    return f"{tokens:,.0f}"


def _long(seconds: float) -> str:
    """Return a time in the unit in which it is read most easily."""
    for unit, name in ((DAY, "days"), (HOUR, "hours"), (60.0, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.1f} s"
