"""Fit how fast matmuls of Hopper and Blackwell are in a step to runs of MLPerf, NVIDIA's dgxc-benchmarking and SimuMax.

Run `python -m tests.planner.calibrate_outside`: it changes the rates of matmuls in layout_rates.json and writes the
table of docs/accuracy.md; with `--table` it writes the table alone, with `--intervals` it sets the intervals alone
(`coverage.py`). `outside_layouts.jsonl` has runs of several models, precisions and machines of the three. Sources count
alike, however many runs they have; a forecast of the table is made without its source where another one has such
matmuls.
"""

import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from helpers.planner.catalog.layout_rates import LAYOUT_RATES, LayoutRates, layout_rates
from helpers.planner.layout.layout_plan import plan_layout
from helpers.planner.rows.line import read_line

from tests.planner import coverage
from tests.planner.calibrate import _digits
from tests.planner.calibrate_layouts import PRIOR, STEP, TYPICAL
from tests.planner.published import TABLE_PAGE, write_between

RUNS = Path(__file__).with_name("outside_layouts.jsonl")
MARKS = "<!-- outside: python -m tests.planner.calibrate_outside writes this -->", "<!-- /outside -->"
# Of what Megatron and Transformer Engine run; Hopper's 16 bits are right as they are.
FITTED = ("9 float8_e4m3fn megatron", "10 bfloat16 megatron", "10 float8_e4m3fn megatron")
_DTYPES = {"fp8": "float8_e4m3fn", "bf16-amp": "bfloat16"}


@dataclass(frozen=True)
class Reply:
    """A run: who published it, which rate its matmuls have, log(measured / forecast), and the slope by that rate."""

    source: str
    words: str
    rate: str
    seconds: float
    gap: float
    slope: float


def reply(line: dict) -> Reply:
    """Plan a run, and once more with its matmuls faster."""
    question = read_line(line)
    layout, cluster, rates = question.layout, question.cluster, layout_rates()
    plain = f"{cluster.gpu.generation} {_DTYPES[layout.precision]}"
    name = f"{plain} {layout.engine}"
    faster = replace(rates, products=rates.products | {name: rates.share(plain, layout.engine) * STEP})
    usual, changed = (plan_layout(layout, cluster, each).seconds for each in (rates, faster))
    measured = line["measured"]["seconds"]
    words = f"{line['arch']['layers']} layers of {line['arch']['hidden']:,}, {layout.ranks} x {cluster.gpu.name}, "
    words += f"{layout.precision}, {layout.summary}"
    gap, slope = math.log(measured / usual), math.log(changed / usual) / math.log(STEP)
    return Reply(line["id"].rpartition("-")[0], words, name, measured, gap, slope)


def fitted(known: Sequence[Reply]) -> dict[str, float]:
    """Return by how much to change each rate, in logarithms; see `calibrate_layouts`."""
    count = {each.source: sum(other.source == each.source for other in known) for each in known}
    changes = {}
    for name in FITTED:
        change, mine = 0.0, [each for each in known if each.rate == name]
        for _ in range(30):
            weights = [
                TYPICAL / max(TYPICAL, abs(each.gap - each.slope * change)) / count[each.source] for each in mine
            ]
            left = (TYPICAL / PRIOR) ** 2 + sum(w * each.slope**2 for w, each in zip(weights, mine, strict=True))
            change = sum(w * each.slope * each.gap for w, each in zip(weights, mine, strict=True)) / left
        changes[name] = change
    return changes


def held_out(known: Sequence[Reply]) -> list[float]:
    """Return forecast / measured of each run, its forecast made without its source."""
    ratios = []
    for each in known:
        change = fitted([other for other in known if other.source != each.source])
        ratios.append(math.exp(each.slope * change.get(each.rate, 0.0) - each.gap))
    return ratios


def table(known: Sequence[Reply]) -> str:
    """Write the runs with their forecasts as Markdown."""
    lines = ["| source | run | measured | forecast | error |", "|---|---|---|---|---|"]
    errors: dict[str, list[float]] = {}
    for each, ratio in zip(known, held_out(known), strict=True):
        errors.setdefault(each.source, []).append(abs(ratio - 1))
        figures = f"{each.seconds:.3f} s | {each.seconds * ratio:.3f} s | {ratio - 1:+.0%}"
        lines.append(f"| {each.source} | {each.words} | {figures} |")
    medians = ", ".join(f"{source} {statistics.median(mine):.0%}" for source, mine in errors.items())
    return "\n".join([*lines, "", f"Median errors: {medians}."])


def changed(rates: LayoutRates, change: dict[str, float]) -> LayoutRates:
    """Return rates with those of matmuls changed by logarithms."""
    moved = {name: rates.share(*name.rsplit(" ", 1)) * math.exp(by) for name, by in change.items()}
    return replace(rates, products=rates.products | moved)


def write(known: Sequence[Reply]) -> None:
    """Write layout_rates.json and the table."""
    values = asdict(changed(layout_rates(), fitted(known)))
    values.pop("measured")
    LAYOUT_RATES.write_text(json.dumps(_digits(values), indent=1) + "\n", encoding="utf-8", newline="\n")
    write_between(TABLE_PAGE, MARKS, table(known))
    note_errors(known)


def note_errors(known: Sequence[Reply]) -> None:
    """Keep the errors in layout_errors.json, and set the intervals by them; all runs have dense models.

    A run counts only if another source has such matmuls: else its own are in the rate.
    """
    pairs = zip(known, held_out(known), strict=True)
    sources = {each.rate: {other.source for other in known if other.rate == each.rate} for each in known}
    coverage.note("outside", ((each.source, False, 1 / ratio) for each, ratio in pairs if len(sources[each.rate]) > 1))
    coverage.main()


def main(*words: str) -> None:
    """Plan the runs, and fit and write; with `--table` write the table, with `--intervals` set the intervals alone."""
    lines = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    known = [reply(line) for line in lines]
    if words == ("--table",):
        write_between(TABLE_PAGE, MARKS, table(known))
        return
    (note_errors if words == ("--intervals",) else write)(known)


if __name__ == "__main__":
    main(*sys.argv[1:])
