"""Whether the seconds that were measured lie in the interval of their forecast, on sources that it does not know.

`python -m tests.planner.coverage` sets the intervals of layout_rates.json, and writes the table of docs/accuracy.md. It
reads layout_errors.json: log(measured / forecast) of each published run, forecast by rates that were fitted without
its source; `calibrate_layouts` and `calibrate_outside` write that. An interval is wide enough that nine of ten runs of
a source that nobody has seen should lie in it (`conformal.py`). Dense models and mixtures of experts have one each.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from helpers.planner.catalog.layout_rates import LAYOUT_RATES

from tests.planner.calibrate import _digits
from tests.planner.conformal import covered, interval
from tests.planner.published import TABLE_PAGE, write_between

ERRORS = Path(__file__).with_name("layout_errors.json")
MARKS = "<!-- coverage: python -m tests.planner.coverage writes this -->", "<!-- /coverage -->"
WANTED = 0.9
KINDS = {"dense": "interval", "experts": "interval_experts"}  # of a run -> the field of layout_rates.json


def note(part: str, errors: Iterable[tuple[str, bool, float]]) -> None:
    """Keep the errors of one part of the published runs in layout_errors.json.

    Args:
        part: "layouts" or "outside".
        errors: of each run: its source, whether its model is a mixture, and measured / forecast.
    """
    kept: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
    for source, mixed, ratio in errors:
        kept["experts" if mixed else "dense"].setdefault(source, []).append(round(math.log(ratio), 4))
    known = json.loads(ERRORS.read_text(encoding="utf-8")) if ERRORS.exists() else {}
    ERRORS.write_text(json.dumps(known | {part: kept}, indent=1) + "\n", encoding="utf-8", newline="\n")


def errors_of(kind: str) -> dict[str, list[float]]:
    """Return |log(measured / forecast)| of all runs of a kind, by source."""
    parts = json.loads(ERRORS.read_text(encoding="utf-8")).values()
    result: dict[str, list[float]] = {}
    for part in parts:
        for source, errors in part[kind].items():
            result.setdefault(source, []).extend(map(abs, errors))
    return result


def promised(sources: int) -> float:
    """Return the coverage that so many sources can promise: 0.9, or less if they are few."""
    return min(WANTED, sources / (sources + 1))


def intervals() -> dict[str, tuple[float, float]]:
    """Return (least, greatest) measured / forecast by the field of layout_rates.json."""
    found = {field: errors_of(kind) for kind, field in KINDS.items()}
    return {field: interval(errors, promised(len(errors))) for field, errors in found.items()}


def table() -> str:
    """Write as Markdown how many runs of each source lie in the interval that the other sources give."""
    lines = ["| source | model | runs | inside the interval of the other sources |", "|---|---|---|---|"]
    words = []
    for kind, field in KINDS.items():
        errors = errors_of(kind)
        shares = _covered(errors)
        for source, mine in sorted(errors.items()):
            lines.append(f"| {source} | {kind} | {len(mine)} | {shares[source]:.0%} |")
        low, high = intervals()[field]
        words.append(
            f"{kind.capitalize()}: the interval is {low:.2f} to {high:.2f} times the forecast. With {len(errors)} "
            f"sources, it should contain {promised(len(errors)):.0%} of a new source's runs. The table's {kind} rows "
            f"average {statistics.fmean(shares.values()):.0%}."
        )
    return "\n".join([*lines, "", "  \n".join(words)])


def _covered(errors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return each source's share of runs inside; a source left out leaves one less to promise with."""
    return covered(errors, promised(len(errors) - 1))


def main() -> None:
    """Write the intervals and the table."""
    values = json.loads(LAYOUT_RATES.read_text(encoding="utf-8")) | _digits(intervals())
    LAYOUT_RATES.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8", newline="\n")
    write_between(TABLE_PAGE, MARKS, table())


if __name__ == "__main__":
    main()
