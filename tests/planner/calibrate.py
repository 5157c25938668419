"""Fit the planner's rates to what others have measured and published, and hold its forecasts against theirs.

Run `python -m tests.planner.calibrate`: it writes helpers/planner/catalog/rates.json, the table "fitted" of each GPU's
file in helpers/planner/hardware, and the table of docs/accuracy.md (`... calibrate matmuls` writes those of the files
alone, which takes a second).
Every forecast in the table is made with rates that were fitted without the source of its own row, and so is the
baseline: the same MFU for every GPU and every recipe, the mean of the other sources.
"""

import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from helpers import GiB
from helpers.planner import Recipe
from helpers.planner.catalog.gpus import GPUS, HARDWARE, Gpu, find_gpu
from helpers.planner.catalog.rooflines import RATES, Rates, roofline_of
from helpers.planner.costs import needed_flops, paging_seconds, seconds_by_bound
from helpers.planner.replay import replay
from helpers.planner.simulate import Simulation, simulate

from tests.planner import traits
from tests.planner.published import TABLE_PAGE, write_between

SPEEDS = Path(__file__).with_name("published_speeds.json")
MARKS = "<!-- seconds: python -m tests.planner.calibrate writes this -->", "<!-- /seconds -->"
LARGE = ("8192", "10240")  # sides of squares that fill any chip and heat it up
SMALL = "1024"  # the side of squares that mostly wait
SLOWEST, FASTEST = 0.5, 1.2  # between which a step's share of the largest rate is looked for


@dataclass(frozen=True)
class Row:
    """A published training step on one GPU."""

    name: str
    source: str
    recipe: Recipe
    gpu: Gpu
    seconds: float
    peak_gib: float | None
    url: str
    note: str
    suspect: str  # why it cannot be right; nothing is fitted to such a row


@cache
def speeds() -> dict[str, Any]:
    """Return what others have published."""
    return json.loads(SPEEDS.read_text(encoding="utf-8"))


def rows() -> list[Row]:
    """Return the published steps."""
    result = []
    for step in speeds()["steps"]:
        recipe = Recipe(**step["recipe"])
        tokens = recipe.micro_batch_size * recipe.gradient_accumulation_steps * recipe.seq
        seconds = tokens / step["tokens_per_second"]
        rest = (step[name] for name in ("peak_gib", "url", "note", "suspect"))
        result.append(Row(step["id"], step["source"], recipe, find_gpu(step["gpu"]), seconds, *rest))
    return result


# -- rates of single operations


def product_rates() -> dict[str, dict[str, float]]:
    """Return FLOP/s of large products by GPU and dtype: measured ones, else the usual multiple of its BF16's.

    FP16 counts as BF16 where only that was measured. GPUs that nobody has measured are left out.
    """
    rates = {row["gpu"]: {d: 1e12 * _large(curve) for d, curve in row["tflops"].items()} for row in speeds()["squares"]}
    fall = {
        dtype: statistics.median(
            _large(row["tflops"][dtype]) / max(row["tflops"][dtype].values())
            for row in speeds()["squares"]
            if dtype in row["tflops"]
        )
        for dtype in ("float32", "float16", "bfloat16")
    }
    for row in speeds()["largest"]:  # the best of all sides, which a hot chip does not keep up
        mine = rates.setdefault(row["gpu"], {})
        mine.update({dtype: 1e12 * best * fall.get(dtype, 1.0) for dtype, best in row["tflops"].items()})
    rates["v100-32gb"] = rates["v100-16gb"]  # the same chip
    for mine in rates.values():
        mine.setdefault("float16", mine["bfloat16"])
    for dtype in ("tf32", "float8_e4m3fn"):
        having = [rates[gpu.name] for gpu in GPUS.values() if dtype in gpu.peaks and gpu.name in rates]
        usual = statistics.median(mine[dtype] / mine["bfloat16"] for mine in having if dtype in mine)
        for mine in having:
            mine.setdefault(dtype, usual * mine["bfloat16"])
    return rates


def _large(curve: dict[str, float]) -> float:
    return statistics.mean(curve[side] for side in LARGE)


def latency() -> float:
    """Return the seconds that a small product takes beyond its FLOPs: the median of all GPUs and dtypes."""
    flops = 2 * int(SMALL) ** 3
    beyond = [
        flops / (1e12 * curve[SMALL]) - flops / (1e12 * _large(curve))
        for row in speeds()["squares"]
        for dtype, curve in row["tflops"].items()
        if dtype in ("float16", "bfloat16")
    ]
    return statistics.median(beyond)


def bandwidth() -> float:
    """Return the share of the sheet's bandwidth that a copy reaches."""
    return statistics.median(1e9 * row["gb_s"] / find_gpu(row["gpu"]).bandwidth for row in speeds()["copies"])


# -- the one number that comes from whole steps


@cache
def simulation(recipe: Recipe) -> Simulation:
    """Return the simulated step of a published one."""
    return simulate(recipe)


@cache
def peak_bytes(recipe: Recipe) -> int:
    """Return what the published step is planned to allocate at its peak."""
    return replay(simulation(recipe).blocks, recipe.expandable_segments).peak_allocated


def predicted(row: Row, rates: Rates) -> float:
    """Return the forecast seconds of a published step."""
    step = simulation(row.recipe)
    paging = paging_seconds(step, peak_bytes(row.recipe), row.gpu)
    return seconds_by_bound(step.works, roofline_of(row.gpu, rates)).total() + paging


def fitted(known: list[Row]) -> Rates:
    """Return the rates with which forecasts of `known` are off least; each source counts once, and no suspect row."""
    attention = {str(row["capability"]): statistics.mean(row["shares"]) for row in speeds()["attention"]}
    rates = Rates(product_rates(), attention, bandwidth(), latency(), 1.0, {}, (1.0, 1.0))

    def misfit(step: float) -> float:
        tried = replace(rates, step=step)
        squares: dict[str, list[float]] = {}
        for row in (row for row in known if not row.suspect):
            squares.setdefault(row.source, []).append(math.log(predicted(row, tried) / row.seconds) ** 2)
        return statistics.mean(map(statistics.mean, squares.values()))

    rates = replace(rates, step=_lowest(misfit))
    return replace(rates, factors=traits.factors(rates, speeds()))


def _lowest(misfit: Callable[[float], float]) -> float:
    """Return where a function with one valley is lowest."""
    low, high = SLOWEST, FASTEST
    while high - low > 1e-3:
        third = (high - low) / 3
        low, high = (low, high - third) if misfit(low + third) < misfit(high - third) else (low + third, high)
    return (low + high) / 2


# -- held against what was published


@dataclass(frozen=True)
class Score:
    """A published step, and what is forecast for it without its source: by the planner, and by one MFU for all."""

    row: Row
    seconds: float
    baseline: float

    @property
    def error(self) -> float:
        """Relative error of the planner."""
        return self.seconds / self.row.seconds - 1

    @property
    def baseline_error(self) -> float:
        """Relative error of the baseline."""
        return self.baseline / self.row.seconds - 1


def model_flops(row: Row) -> float:
    """Return the FLOPs of a step that are not recomputed."""
    return needed_flops(simulation(row.recipe).works)


def peak(row: Row) -> float:
    """Return the FLOP/s of the sheet in the dtype that the row computes in."""
    return row.gpu.peaks["bfloat16"]


def scores() -> list[Score]:
    """Forecast each published step with what the other sources say."""
    result = []
    for row in rows():
        others = [other for other in rows() if other.source != row.source and not other.suspect]
        share = statistics.mean(model_flops(other) / (other.seconds * peak(other)) for other in others)
        result.append(Score(row, predicted(row, fitted(others)), model_flops(row) / (share * peak(row))))
    return result


def table(held: list[Score]) -> str:
    """Write forecasts beside published seconds, as Markdown."""
    lines = [
        "| recipe | GPU | forecast | published | error | one MFU for all | GiB planned | published | source |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for score in held:
        row = score.row
        notes = [row.note] * bool(row.note) + [f"suspicious: {row.suspect}"] * bool(row.suspect)
        lines.append(
            f"| {row.recipe.summary}, {row.recipe.seq} tokens | {row.gpu.name} | {score.seconds:.2f} s | "
            f"{row.seconds:.2f} s | {score.error:+.1%} | {score.baseline_error:+.1%} | "
            f"{peak_bytes(row.recipe) / GiB:.1f} | {row.peak_gib or '-'} | "
            f"{'; '.join([f'[{row.name}]({row.url})', *notes])} |"
        )
    return "\n".join([*lines, "", summary(held)])


def summary(held: list[Score]) -> str:
    """Sum the errors up: with the rows that are not suspect, and with all."""
    sentences = []
    for words, chosen in (
        ("Median error", [s for s in held if not s.row.suspect]),
        ("Median error including suspicious rows", held),
    ):
        ours, theirs = ([abs(getattr(s, name)) for s in chosen] for name in ("error", "baseline_error"))
        sentences.append(
            f"{words}: {statistics.median(ours):.1%}, largest {max(ours):.1%}; "
            f"with the same MFU for every row, {statistics.median(theirs):.1%} and {max(theirs):.1%}."
        )
    return " ".join(sentences)


FITTED = "[fitted]"  # and what follows it in a GPU's file
FITTED_BY = f"{FITTED}  # FLOP/s of large matmuls; python -m tests.planner.calibrate writes this table"


def write_matmuls() -> None:
    """Write the rates of matmuls into the files of the GPUs."""
    for name, rates in product_rates().items():
        path = HARDWARE / f"{name}.toml"
        sheet = path.read_text(encoding="utf-8").partition(FITTED)[0].rstrip()
        lines = [f"{dtype} = {rate:.4g}" for dtype, rate in rates.items()]
        table = "\n".join(
            [f"{FITTED}  # FLOP/s of large matmuls; python -m tests.planner.calibrate writes this table", *lines]
        )
        path.write_text(f"{sheet}\n\n{table}\n", encoding="utf-8", newline="\n")


def main() -> None:
    """Write the files of the GPUs, rates.json and the table of docs/accuracy.md."""
    write_matmuls()
    if sys.argv[1:] == ["matmuls"]:
        return
    held = scores()
    ratios = [score.row.seconds / score.seconds for score in held]
    rates = replace(fitted(rows()), interval=(min(1.0, *ratios), max(1.0, *ratios)))
    shared = {name: value for name, value in asdict(rates).items() if name != "products"}
    RATES.write_text(json.dumps(_digits(shared), indent=1) + "\n", encoding="utf-8", newline="\n")
    write_between(TABLE_PAGE, MARKS, table(held))
    print(table(held))


def _digits(value: Any) -> Any:
    """Round every number to four digits."""
    if isinstance(value, dict):
        return {key: _digits(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_digits(each) for each in value]
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
