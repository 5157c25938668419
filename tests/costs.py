"""What tests cost: `tests/costs.json` holds seconds per family. A family that takes more than `SLOW` is slow, unless
its own marks say which of its tests are, and each slow test has its day in a round of `ROUND` days.

A family is a test function with all its parameters, and its cost the sum over these, set-up included: in a whole run,
and on one day of those that `sample` draws from. Seconds are those of the processor, of all processes that a test
starts: `WHOLE_LABS=1 COSTS=build/costs.jsonl pytest -n 2` writes them on Linux (`tests/cpu_meter.py`), and
`python -m tests.costs build/costs.jsonl` renews the families of which all tests ran.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

COSTS = Path(__file__).with_name("costs.json")
SLOW = 1.5  # seconds
ROUND = 9  # days
PIECE = 20.0  # seconds; the tests of a family that takes longer on one day are spread over several days


class Cost(NamedTuple):
    """Seconds of a family: of all its tests, and of those that `sample` leaves on one day."""

    whole: float
    daily: float


def family(nodeid: str) -> str:
    """Return a test's name without its parameters."""
    return nodeid.partition("[")[0]


@cache
def costs() -> dict[str, Cost]:
    """Return what is known of the families that take long."""
    if not COSTS.exists():
        return {}
    return {name: Cost(*seconds) for name, seconds in json.loads(COSTS.read_text(encoding="utf-8")).items()}


@cache
def slow_families() -> set[str]:
    """Return the families that take more than `SLOW` seconds, all tests together."""
    return {name for name, cost in costs().items() if cost.whole > SLOW}


def spread(seconds: dict[str, float], days: int = ROUND) -> dict[str, int]:
    """Return a day for each name, so that all days take about the same: the longest first, each to the emptiest day."""
    load, day_of = [0.0] * days, {}
    for name in sorted(seconds, key=lambda name: (-seconds[name], name)):
        day_of[name] = load.index(min(load))
        load[day_of[name]] += seconds[name]
    return day_of


def pieces(name: str) -> int:
    """Return over how many days the tests of a family with parameters are spread."""
    known = costs().get(name)
    return min(ROUND, math.ceil(known.daily / PIECE)) or 1 if known else 1


def read_report(report: Path) -> dict[str, float]:
    """Return the seconds of each test in a report of `tests/cpu_meter.py`; of a test run twice the last counts."""
    lines = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    return {line["test"]: line["seconds"] for line in lines}


def listed(printed: Iterable[str]) -> list[str]:
    """Return the tests in what `pytest --collect-only -q` prints."""
    return [line.strip() for line in printed if "::" in line and line.startswith("tests/")]


def _collected(whole: bool) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
    settings = {"WHOLE_LABS": "1"} if whole else {"WHOLE_LABS": "", "SAMPLE_SEED": "0"}
    printed = subprocess.run(command, cwd=COSTS.parents[1], env=os.environ | settings, capture_output=True, text=True)
    return listed(printed.stdout.splitlines())


def renewed(known: dict[str, Cost], seconds: dict[str, float], whole: list[str], day: list[str]) -> dict[str, Cost]:
    """Return the costs after a run in which tests took `seconds`, of all tests and those that one day's sample has.

    A family of which some tests did not run keeps its cost: a sample would make it look cheap.
    """
    tests = defaultdict(list)
    for test in whole:
        tests[family(test)].append(test)
    ran = {name: sum(map(seconds.get, its)) for name, its in tests.items() if seconds.keys() >= set(its)}
    of_day = Counter(map(family, day))
    return {
        name: Cost(round(took, 1), round(took * of_day[name] / len(tests[name]), 1))
        for name, took in sorted(({name: cost.whole for name, cost in known.items()} | ran).items())
        if took > SLOW / 2 and name in tests
    }


def main(argv: list[str] | None = None) -> None:
    """Write what a report measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.costs", description=__doc__.partition("\n")[0])
    parser.add_argument("report", type=Path)
    seconds = read_report(parser.parse_args(argv).report)
    costs_now = renewed(costs(), seconds, _collected(whole=True), _collected(whole=False))
    lines = [f"{json.dumps(name)}: {json.dumps(cost)}" for name, cost in costs_now.items()]
    COSTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
