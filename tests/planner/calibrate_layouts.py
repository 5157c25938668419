"""Fit what clusters reach to published runs, and hold the planner's seconds against theirs, source by source.

Run `python -m tests.planner.calibrate_layouts`: it writes helpers/planner/catalog/layout_rates.json and the tables of
docs/accuracy.md; it takes about half an hour on two cores. With `--tables` it writes the tables alone, in half of that,
and leaves the rates as they are. Both keep the errors in layout_errors.json, and set the intervals by them
(`coverage.py`); `--intervals 8` does that alone, by eight runs of each source, in some minutes. Every forecast in the
tables is made with rates that were fitted without the source of its own run. So is the baseline beside it: for a GPU's
generation and precision one MFU, the median of the other sources.

The logarithm of a forecast is nearly linear in the logarithms of the rates. So a pass takes every run's derivatives,
and solves for the rates with which the forecasts are off least; sources count alike, however many runs they have.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from helpers.core.units import GiB
from helpers.planner.catalog.layout_rates import LAYOUT_RATES, LayoutRates, layout_rates
from helpers.planner.layout.layout_plan import plan_layout, reserved_bytes, stage_kinds
from helpers.planner.layout.long_stage import run_long_stage
from helpers.planner.layout.schedule import orders
from helpers.planner.layout.step_time import StepTime
from helpers.planner.rows.line import Question, read_line

import torch

from tests.planner import coverage
from tests.planner.calibrate import _digits
from tests.planner.layout_runs import RUNS
from tests.planner.published import TABLE_PAGE, write_between

SECONDS = (
    "<!-- layouts: python -m tests.planner.calibrate_layouts writes this -->",
    "<!-- /layouts -->",
)
BYTES = (
    "<!-- layouts' bytes: python -m tests.planner.calibrate_layouts writes this -->",
    "<!-- /layouts' bytes -->",
)
PASSES = 2
STEP = 1.1  # by which a rate is multiplied for its derivative
PRIOR = 0.5  # a change of a rate by this (in logarithms) weighs as much as a source that is off by a typical error
TYPICAL = 0.15  # error of a forecast, in logarithms, beyond which a run counts less (Huber 1964)
SIXTEEN = {"8": ("float16", "bfloat16"), "9": ("bfloat16",), "10": ("bfloat16", "bfloat16 megatron")}
EIGHT = ("9", "10")


def _scaled(group: str, *keys: str) -> Callable[[LayoutRates, float], LayoutRates]:
    def change(rates: LayoutRates, factor: float) -> LayoutRates:
        old = getattr(rates, group)
        return replace(rates, **{group: old | {key: old.get(key, 1.0) * factor for key in keys}})

    return change


def _times(name: str) -> Callable[[LayoutRates, float], LayoutRates]:
    return lambda rates, factor: replace(rates, **{name: getattr(rates, name) * factor})


# What is fitted, and how it changes.
KNOBS: dict[str, Callable[[LayoutRates, float], LayoutRates]] = {
    **{f"products {m}": _scaled("products", *(f"{m} {d}" for d in dtypes)) for m, dtypes in SIXTEEN.items()},
    **{f"8-bit products {m}": _scaled("products", f"{m} float8_e4m3fn", f"{m} float8_e4m3fn megatron") for m in EIGHT},
    **{f"attention {m}": _scaled("attention", m) for m in SIXTEEN},
    **{name: _times(name) for name in ("inside", "outside", "launch", "kernel", "fused", "eager", "depth", "power")},
}


@dataclass(frozen=True)
class Run:
    """A published run.

    Attributes:
        line: as `plan --rows` reads it, with what was measured.
        question: what it asks.
        seconds: measured.
    """

    line: dict[str, Any]
    question: Question
    seconds: float

    @property
    def source(self) -> str:
        """Who published it."""
        return str(self.line["id"]).rpartition("-")[0]

    @property
    def mixed(self) -> bool:
        """Whether its model is a mixture of experts."""
        return self.question.layout.arch.experts > 0

    @property
    def chip(self) -> str:
        """Generation of the GPU, and bits of the products."""
        capability = self.question.cluster.gpu.capability or (0, 0)
        return f"{capability[0]} {self.question.layout.precision == 'fp8'}"


@dataclass
class Reply:
    """What the planner says of a run: seconds, their derivatives by `KNOBS`, MFU, and bytes at the peak."""

    seconds: float
    slopes: list[float]
    mfu: float
    nbytes: int


def runs() -> list[Run]:
    """Return the published runs that say how long a step took."""
    lines = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    return [Run(line, read_line(line), line["measured"]["seconds"]) for line in lines if line["measured"]["seconds"]]


def thinned(known: Sequence[Run], most: int) -> list[Run]:
    """Return at most so many runs of each source, evenly spaced in the order of the file."""
    sources: dict[str, list[Run]] = defaultdict(list)
    for run in known:
        sources[run.source].append(run)
    return [
        mine[at * len(mine) // min(most, len(mine))] for mine in sources.values() for at in range(min(most, len(mine)))
    ]


def reply(run: Run, rates: LayoutRates) -> Reply:
    """Plan a run, and once more with each rate changed."""
    layout, cluster = run.question.layout, run.question.cluster
    plan = plan_layout(layout, cluster, rates)
    kinds = stage_kinds(layout)
    stages = [run_long_stage(layout, kind) for kind in kinds]
    order = orders(layout)
    slopes = []
    for change in KNOBS.values():
        changed = StepTime(layout, cluster, change(rates, STEP), order, stages).seconds
        slopes.append(math.log(changed / plan.seconds) / math.log(STEP))
    return Reply(plan.seconds, slopes, plan.mfu, run.question.logged(plan).nbytes)


def replies(known: Sequence[Run], rates: LayoutRates) -> list[Reply]:
    """Return the replies to runs, in order; equal models are planned in one process."""
    from joblib import Parallel, delayed
    from tqdm import tqdm

    order = sorted(range(len(known)), key=lambda at: (str(known[at].question.layout.arch), known[at].line["id"]))
    groups = [order[at : at + 8] for at in range(0, len(order), 8)]
    jobs = Parallel(2, return_as="generator")(
        delayed(lambda group: [reply(known[at], rates) for at in group])(group) for group in groups
    )
    found: dict[int, Reply] = {}
    for group, answers in zip(groups, tqdm(jobs, total=len(groups)), strict=True):
        found |= dict(zip(group, answers, strict=True))
    return [found[at] for at in range(len(known))]


def fitted(known: Sequence[tuple[Run, Reply]]) -> list[float]:
    """Return by how much to change each of `KNOBS`, in logarithms."""
    count = {source: sum(run.source == source for run, _ in known) for source in {run.source for run, _ in known}}
    slopes = torch.tensor([answer.slopes for _, answer in known], dtype=torch.float64)
    gaps = torch.tensor([math.log(run.seconds / answer.seconds) for run, answer in known], dtype=torch.float64)
    shares = torch.tensor([1 / count[run.source] for run, _ in known], dtype=torch.float64)
    prior = torch.eye(len(KNOBS), dtype=torch.float64) * (TYPICAL / PRIOR) ** 2
    change = torch.zeros(len(KNOBS), dtype=torch.float64)
    for _ in range(30):
        off = (gaps - slopes @ change).abs()
        weights = shares * (TYPICAL / off.clamp(min=TYPICAL))
        left = slopes.T @ (weights[:, None] * slopes) + prior
        change = torch.linalg.solve(left, slopes.T @ (weights * gaps))
    return change.tolist()


def changed(rates: LayoutRates, change: Iterable[float]) -> LayoutRates:
    """Return rates changed by logarithms, in the order of `KNOBS`; a link passes on no more than its sheet says."""
    for knob, by in zip(KNOBS.values(), change, strict=True):
        rates = knob(rates, math.exp(by))
    return replace(rates, inside=min(rates.inside, 1.0), outside=min(rates.outside, 1.0))


@dataclass(frozen=True)
class Score:
    """Measured / forecast of a run, whose source the forecast does not know; and the same of one MFU."""

    run: Run
    ratio: float
    baseline: float


def scores(known: Sequence[tuple[Run, Reply]]) -> list[Score]:
    """Forecast each run with what the other sources say; mixtures of experts with what all dense runs say of them."""
    result = []
    for source in sorted({run.source for run, _ in known}):
        others = [pair for pair in known if pair[0].source != source and not pair[0].mixed]
        change = fitted(others)
        for run, answer in (pair for pair in known if pair[0].source == source):
            by = sum(slope * step for slope, step in zip(answer.slopes, change, strict=True))
            ratio = run.seconds / (answer.seconds * math.exp(by))
            alike = [p for p in known if p[0].source != source and p[0].chip == run.chip and p[0].mixed == run.mixed]
            alike = alike or [p for p in known if p[0].source != source and p[0].mixed == run.mixed]
            mfu = statistics.median(a.mfu * a.seconds / r.seconds for r, a in alike) if alike else math.nan
            result.append(Score(run, ratio, mfu / (answer.mfu * answer.seconds / run.seconds)))
    return result


def _errors(ratios: Iterable[float]) -> list[float]:
    return sorted(abs(1 / ratio - 1) for ratio in ratios)


def _at(errors: Sequence[float], share: float) -> float:
    return errors[min(len(errors) - 1, math.ceil(share * len(errors)) - 1)] if errors else math.nan


def table(held: Sequence[Score]) -> str:
    """Write the errors by source and kind as Markdown."""
    lines = [
        "| source | kind | runs | median error | nine of ten within | measured / forecast | one MFU: median error |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for score in held:
        groups[group_of(score.run), kind_of(score.run)].append(score)
    for (source, kind), mine in sorted(groups.items()):
        errors = _errors(score.ratio for score in mine)
        base = _errors(score.baseline for score in mine if not math.isnan(score.baseline))
        lines.append(
            f"| {source} | {kind} | {len(mine)} | {_at(errors, 0.5):.0%} | {_at(errors, 0.9):.0%} | "
            f"{statistics.median(score.ratio for score in mine):.2f} | {_at(base, 0.5):.0%} |"
        )
    return "\n".join([*lines, "", summary(held), "", against_others(held)])


def memory_table(known: Iterable[tuple[Run, int]]) -> str:
    """Write measured bytes beside planned ones as Markdown, by source and by what was measured.

    Args:
        known: runs, each with the bytes that are planned to be allocated at the peak.
    """
    groups: dict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
    for run, nbytes in known:
        measured = run.line["measured"]
        if measured["gib"] and run.source in MEMORY:
            low, high = reserved_bytes(run.question.layout, run.question.cluster, nbytes)
            held = measured["gib"] * GiB
            kind = measured["kind"] or MEMORY[run.source]
            groups[run.source, kind].append((held / nbytes, low <= held <= high))
    lines = [
        "| source | measured | runs | measured / planned peak | median error | in the interval of reserved memory |",
        "|---|---|---|---|---|---|",
    ]
    for (source, kind), mine in sorted(groups.items()):
        ratios = sorted(ratio for ratio, _ in mine)
        inside = f"{sum(within for _, within in mine)} of {len(mine)}" if kind == "reserved" else "-"
        error = statistics.median(abs(1 / ratio - 1) for ratio in ratios)
        between = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        lines.append(f"| {source} | {kind} | {len(mine)} | {between} | {error:.0%} | {inside} |")
    return "\n".join(lines)


def group_of(run: Run) -> str:
    """Return the source of a run; of vTrain, which tells them apart, also whether one node did it."""
    if run.source != "vtrain":
        return run.source
    return "vtrain, " + ("one node" if run.question.layout.ranks <= run.question.cluster.node else "many nodes")


# What a source prints where the line does not say it: torchtitan's logs, also read by torchao, have the reserved peak
# (max_reserved_gib); torchtune trains on one GPU, and is held against recipes.
MEMORY = {"kempnerforge": "allocated", "torchtitan": "reserved", "ao": "reserved"}

OTHERS = {  # what those who predict these runs publish as their mean error
    "vtrain, one node": ("vTrain", 0.0837),
    "vtrain, many nodes": ("vTrain", 0.1473),
}


def against_others(held: Sequence[Score]) -> str:
    """Compare mean errors with those of tools that were made for these runs."""
    sentences = []
    for group, (tool, published) in OTHERS.items():
        errors = _errors(score.ratio for score in held if group_of(score.run) == group)
        if errors:
            sentences.append(f"{group}: ours is {statistics.mean(errors):.1%}; {tool} reports {published:.1%}.")
    return "These are our mean errors and those that other tools report for the same runs. " + " ".join(sentences)


def kind_of(run: Run) -> str:
    """Return which dimensions a run has besides data parallelism."""
    layout = run.question.layout
    names = {"TP": layout.tensor, "PP": layout.pipeline, "CP": layout.context, "EP": layout.expert}
    kinds = [name for name, size in names.items() if size > 1]
    return ("experts: " if run.mixed else "") + (" x ".join(kinds) or layout.zero)


def summary(held: Sequence[Score]) -> str:
    """Sum up by the median of the sources' medians, dense runs and mixtures apart."""
    sentences = ["Each source has a median error and a 90th percentile of errors."]
    for words, mixed in (("dense runs", False), ("mixtures of experts", True)):
        sources: dict[str, list[Score]] = defaultdict(list)
        for score in held:
            if score.run.mixed == mixed:
                sources[score.run.source].append(score)
        ours = [_at(_errors(s.ratio for s in mine), 0.5) for mine in sources.values()]
        ninth = [_at(_errors(s.ratio for s in mine), 0.9) for mine in sources.values()]
        base = [_at(_errors(s.baseline for s in mine if s.baseline == s.baseline), 0.5) for mine in sources.values()]
        base = [error for error in base if error == error]
        sentences.append(
            f"For {words}, these two figures have medians of {statistics.median(ours):.1%} and "
            f"{statistics.median(ninth):.1%} over the sources; with one MFU for all runs, the first median is "
            f"{statistics.median(base):.1%}."
        )
    return " ".join(sentences)


def main(argv: Sequence[str] | None = None) -> None:
    """Write layout_rates.json and the tables of docs/accuracy.md."""
    parser = argparse.ArgumentParser(prog="python -m tests.planner.calibrate_layouts")
    parser.add_argument("--tables", action="store_true", help="write the tables, and leave the rates as they are")
    words = "set the intervals alone, by so many runs of each source; they need no more, as a source counts once"
    parser.add_argument("--intervals", type=int, metavar="RUNS", help=words)
    args = parser.parse_args(argv)
    tables_only = args.tables or bool(args.intervals)
    rates, known = layout_rates(), thinned(runs(), args.intervals) if args.intervals else runs()
    for _ in range(1 if tables_only else PASSES):
        pairs = list(zip(known, replies(known, rates), strict=True))
        held = scores(pairs)
        print(summary(held))
        rates = changed(rates, fitted([pair for pair in pairs if not pair[0].mixed]))
    if not tables_only:
        _write_rates(rates)
    coverage.note("layouts", ((score.run.source, score.run.mixed, score.ratio) for score in held))
    coverage.main()
    if args.intervals:
        return
    write_between(TABLE_PAGE, SECONDS, table(held))
    write_between(TABLE_PAGE, BYTES, memory_table((run, answer.nbytes) for run, answer in pairs))
    print(table(held))


def _write_rates(rates: LayoutRates) -> None:
    values = {name: value for name, value in asdict(rates).items() if name != "measured"}
    LAYOUT_RATES.write_text(json.dumps(_digits(values), indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
