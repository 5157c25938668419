"""Checks of the bill of a whole run: hours and dollars, each with a low and a high end."""

from types import SimpleNamespace
from typing import Any

from ..base import Check, Evidence

NEAR = 1e-6  # relative
ENDS = ("low", "likely", "high")
# (seconds, low, high) of a step, tokens of a step, GPUs; tokens of the run; dollars an hour; goodput from, to
CASES = (
    ((7.0, 6.3, 8.4), 2**19, 8, 2**19 * 1000, 2.5, (0.9, 0.98)),
    ((2.0, 1.5, 3.0), 2**21, 64, 2**21 * 10_000, 3.0, (0.7, 0.9)),
    ((1.0, 1.0, 1.0), 1000, 4, 10_500, 1.0, (1.0, 1.0)),
    ((1.0, 0.5, 2.0), 2**20, 2, 2**20 + 1, 10.0, (0.5, 1.0)),
)


def _bills(bill: Any) -> list[dict[str, dict[str, float]]]:
    """Return the answer's bill of each case."""
    bills = []
    for (likely, low, high), each, gpus, tokens, price, goodput in CASES:
        layout = SimpleNamespace(tokens=each, ranks=gpus)
        made = bill(SimpleNamespace(seconds=likely, low=low, high=high, layout=layout), tokens, price, goodput)
        numbers = {what: [float(end) for end in made[what]] for what in ("days", "gpu_hours", "dollars")}
        bills.append({what: dict(zip(ENDS, ends, strict=True)) for what, ends in numbers.items()})
    return bills


def _case(number: int) -> str:
    (likely, low, high), each, gpus, tokens, price, (worst, best) = CASES[number]
    step = f"steps of {likely:g} s ({low:g} to {high:g}) and {each:,} tokens on {gpus} GPUs"
    return f"{tokens:,} tokens in {step}, goodput {worst:g} to {best:g}, {price:g} dollars"


class OnBills(Check):
    """Compares some figures of the bills with the reference's."""

    what: str
    ends: tuple[str, ...]
    cases: tuple[int, ...]
    look: str

    @staticmethod
    def probe(seed: int, bill: Any) -> Evidence:
        return {"bills": _bills(bill)}

    @classmethod
    def judge(cls, seen: Evidence, expected: Evidence) -> str | None:
        for number in cls.cases:
            for end in cls.ends:
                got, want = (each["bills"][number][cls.what][end] for each in (seen, expected))
                if not abs(got - want) <= NEAR * want:
                    what = cls.what.replace("_", " ")
                    return f"{_case(number)}: {end} {got:,.6g} {what}; it should be {want:,.6g}. {cls.look}"
        return None


class WholeSteps(OnBills):
    """A run takes a whole number of steps; the last takes as long as any other."""

    what, ends, cases, look = "days", ("likely",), (2, 3), "How many steps does it take to read all tokens?"
    hint = "`math.ceil(tokens / layout.tokens)`"


class DaysAtLikelySpeed(OnBills):
    """Likely days: steps times likely seconds, divided by the mean of the two goodputs."""

    what, ends, cases, look = "days", ("likely",), (0, 1), "Goodput is the share of the time that is training."
    hint = "At a goodput of 90% the run takes 1 / 0.9 as long. A day has 86,400 seconds."


class EndsBelongTogether(OnBills):
    """Low: the fastest step at the best goodput. High: the slowest step at the worst goodput."""

    what, ends, cases, look = "days", ("low", "high"), (0, 1, 3), "Which goodput goes with the quickest step?"
    hint = "Low: `low` seconds over the larger goodput; high: `high` seconds over the smaller one."


class HoursOfAllGpus(OnBills):
    """GPU-hours: hours of the run times its GPUs, including those that wait."""

    what, ends, cases, look = "gpu_hours", ENDS, (0, 1), "Count 24 hours per day for each GPU."
    hint = "`layout.ranks` GPUs are rented for every hour of the run."


class DollarsFollow(OnBills):
    """Dollars: GPU-hours times the price of one."""

    what, ends, cases, look = "dollars", ENDS, (0, 1), "The price is that of one GPU for an hour."
    hint = "GPU-hours x price."


BILL = (WholeSteps, DaysAtLikelySpeed, EndsBelongTogether, HoursOfAllGpus, DollarsFollow)
