"""The planner beside what others forecast of the same runs: the league tables of docs/accuracy.md, source by source.

`python -m tests.planner.league KERNELS.json` writes them. The file is SimuMax's table of measured kernels,
configs/system/b200_bf16_ceperm.json of its repository; a forecast with `--rates` needs it. Where another table of the
page has the planner's figure of a run, it is read there. The rivals' formulas are in `league_formulas.py`. What the
others say is kept in files: calculon's forecasts (`league_calculon.py`), PyTorch's MemTracker's (`league_tracker.py`),
and those that SimuMax has published.
"""

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from helpers.core.units import GiB
from helpers.planner.catalog.archs import arch_of
from helpers.planner.rows.answers import answer_rows
from helpers.planner.rows.line import Question, read_line

from tests.planner import calibrate_outside, coverage, megatron_rows
from tests.planner.calibrate_layouts import Run, group_of, runs
from tests.planner.layout_runs import RUNS
from tests.planner.league_calculon import FORECASTS, SOURCES
from tests.planner.league_formulas import Job, accelerate, deepspeed, eleuther, megatron, papers
from tests.planner.league_tracker import PEAKS, name_of
from tests.planner.published import FIGURES, TABLE_MARKS, TABLE_PAGE, Figure, shown, write_between

BYTES = "<!-- league: python -m tests.planner.league KERNELS.json writes this -->", "<!-- /league -->"
SECONDS = (
    "<!-- league's seconds: python -m tests.planner.league KERNELS.json writes this -->",
    "<!-- /league's seconds -->",
)

OURS, RATED, BASE = "ours", "ours with `--rates`", "one MFU for all"


def _kept(path: Path) -> dict[str, dict[str, float]]:
    return json.loads(path.read_text(encoding="utf-8"))["runs"]


SIMUMAX = _kept(Path(__file__).with_name("simumax_forecasts.json"))
CALCULON, TRACKER = _kept(FORECASTS), _kept(PEAKS)
RIVALS = {
    "calculon": lambda job: CALCULON.get(job.name, {}).get("bytes"),
    "Megatron-LM's script": megatron,
    "the papers' formulas": papers,
    "EleutherAI's script": eleuther,
    "DeepSpeed's estimator": deepspeed,
    "`accelerate estimate-memory`": accelerate,
    "MemTracker": lambda job: TRACKER.get(job.name, {}).get("bytes"),
}


def job_of(source: str, name: str, question: Question) -> Job:
    """Return the job of the line with this name."""
    layout = question.layout
    stage = {"none": 0}.get(layout.zero) if layout.zero == "none" else int(layout.zero[-1])
    return Job(
        source,
        layout.arch,
        layout.ranks,
        layout.tensor,
        layout.pipeline,
        layout.context,
        stage or 0,
        layout.micro_batch_size,
        layout.seq,
        layout.recompute == "full",
        layout.precision,
        name,
        scattered=layout.sequence_parallel and layout.tensor > 1,
        virtual_stages=layout.virtual_stages if layout.pipeline > 1 else 1,
        micro_batches=layout.micro_batches,
        keeps_scores=layout.attention == "eager" and layout.recompute == "none",
    )


def _job_of_figure(figure: Figure) -> Job:
    recipe = figure.recipe
    rest = (recipe.micro_batch_size, recipe.seq, recipe.checkpointing == "every", recipe.precision, name_of(recipe))
    return Job(figure.where.partition(",")[0], arch_of(recipe.model), 1, 1, 1, 1, 0, *rest)


Entry = tuple[Job, float, float, float | None]  # with measured bytes, ours, and SimuMax's


def on_one_gpu() -> list[Entry]:
    """Return the full trainings of decoders on one GPU whose allocated bytes are published."""
    lines = shown(TABLE_PAGE, TABLE_MARKS).splitlines()[2:]
    wanted = [
        (figure, float(line.split(" | ")[2]) * 1e9)
        for figure, line in zip(FIGURES, lines[: len(FIGURES)], strict=True)
        if figure.metric == "allocated" and not figure.recipe.lora_rank and not figure.recipe.model.startswith("vit")
    ]
    return [(_job_of_figure(figure), figure.said, ours, None) for figure, ours in wanted]


def of_megatron() -> list[Entry]:
    """Return the runs of decoders by Megatron-LM whose bytes the page has, SimuMax's among them.

    BERT and T5 are left out: the others' formulas are about decoders.
    """
    lines = shown(TABLE_PAGE, megatron_rows.MARKS).splitlines()[2:]
    entries = []
    for each, line in zip(megatron_rows.ROWS, lines, strict=True):
        name = each["row"]["id"]
        if any(each["row"]["arch"].get(name) for name in ("masked", "encoder_layers")):
            continue
        theirs = SIMUMAX[name]["their_gib"] * GiB if name in SIMUMAX else None
        source = "SimuMax, B200" if theirs else "Megatron-LM's tests"
        job = job_of(source, name, read_line(each["row"]))
        entries.append((job, each["peak_bytes"], float(line.split(" | ")[4]) * 1e9, theirs))
    return entries


def of_kempner() -> list[Entry]:
    """Return KempnerForge's runs, which state allocated bytes."""
    lines = [line for line in _lines(RUNS) if line["id"].startswith("kempner") and line["measured"]["gib"]]
    ours = answer_rows(lines)
    return [
        (
            job_of("KempnerForge", line["id"], read_line(line)),
            line["measured"]["gib"] * GiB,
            found["peak_allocated_bytes"],
            None,
        )
        for line, found in zip(lines, ours, strict=True)
    ]


@dataclass(frozen=True)
class Group:
    """The runs of one source: what was measured, and by the name of a column what is forecast."""

    source: str
    measured: Sequence[float]
    forecasts: Mapping[str, Sequence[float | None]]


def bytes_table(entries: Iterable[Entry]) -> str:
    """Write the median errors of bytes as Markdown, by source."""
    sources: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        sources[entry[0].source].append(entry)
    groups = []
    for source, mine in sources.items():
        forecasts = {OURS: [ours for *_, ours, _ in mine], "SimuMax's forecast": [theirs for *_, theirs in mine]}
        forecasts |= {name: [rival(job) for job, *_ in mine] for name, rival in RIVALS.items()}
        groups.append(Group(source, [measured for _, measured, *_ in mine], forecasts))
    return _table(groups, [OURS, "SimuMax's forecast", *RIVALS])


def _table(groups: Sequence[Group], columns: Sequence[str]) -> str:
    """Write a line for each source, and the sentence that says which forecasts are closer than ours."""
    lines = [f"| source | runs | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for group in groups:
        cells = [_cell(group.forecasts.get(name, [None] * len(group.measured)), group.measured) for name in columns]
        lines.append(f"| {group.source} | {len(group.measured)} | {' | '.join(cells)} |")
    found = [each for group in groups for each in closer(group)]
    return "\n".join([*lines, "", f"Closer than ours on the same runs: {'; '.join(found) or 'none'}."])


def closer(group: Group) -> list[str]:
    """Say which forecasts have a smaller median error than ours, in tenths of a percent, on the runs that they take."""
    found = []
    for name, theirs in group.forecasts.items():
        if name.startswith(OURS):
            continue
        both = [
            (abs(one / real - 1), abs(mine / real - 1))
            for one, mine, real in zip(theirs, group.forecasts[OURS], group.measured, strict=True)
            if one is not None and mine is not None
        ]
        if both:
            their, mine = (round(statistics.median(errors), 3) for errors in zip(*both, strict=True))
            if their < mine:
                found.append(f"{name} on {group.source} ({their:.1%}; ours {mine:.1%})")
    return found


def _cell(forecasts: Sequence[float | None], measured: Sequence[float]) -> str:
    """Return the median error of the forecasts that there are, and of how many runs, where it is not all."""
    errors = [abs(one / real - 1) for one, real in zip(forecasts, measured, strict=True) if one is not None]
    if not errors:
        return "-"
    share = "" if len(errors) == len(measured) else f" ({len(errors)})"
    return f"{statistics.median(errors):.1%}{share}"


# -- seconds


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def as_simumax(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of SimuMax's with all that it says of its runs: nothing is sent beside the work."""
    arch = {**row["arch"], "bias": False, "layer_norm": False, "positions": 0}
    how = {"context_method": "all-to-all"} if row.get("context", 1) > 1 else {}
    said = {
        "framework": "simumax",
        "fused_loss": True,
        "virtual_stages": 1,
        "schedule": "1f1b",
        "checkpointing": "none",
    }
    return {**row, **said, **how, "arch": arch}


def mfu(question: Question, seconds: float) -> float:
    """Return the share of the data sheet's FLOP/s that a run reached."""
    layout, gpu = question.layout, question.cluster.gpu
    peak = gpu.peaks["float8_e4m3fn" if layout.precision == "fp8" else "bfloat16"]
    tokens = layout.micro_batch_size * layout.micro_batches * layout.data * layout.seq
    return layout.arch.flops_per_token(layout.seq) * tokens / (seconds * layout.ranks * peak)


@cache
def reached() -> list[tuple[str, str, float]]:
    """Return (source, kind of chip and model, MFU) of all runs without adapters whose seconds the repository has."""
    lines = [line for path in (RUNS, calibrate_outside.RUNS) for line in _lines(path) if line["measured"]["seconds"]]
    known = [(line["id"].rpartition("-")[0], read_line(line), line["measured"]["seconds"]) for line in lines]
    known = [one for one in known if one[0] != "simumax"]
    known += [("simumax", read_line(as_simumax(row)), SIMUMAX[row["id"]]["seconds"]) for row in _simumax_rows()]
    return [(name, kind(asked), mfu(asked, took)) for name, asked, took in known if not asked.layout.lora_rank]


def kind(question: Question) -> str:
    """Return the generation of a run's GPU, its precision, and whether its model is a mixture of experts."""
    layout = question.layout
    return f"{question.cluster.gpu.generation} {layout.precision == 'fp8'} {layout.arch.experts > 0}"


def one_mfu(source: str, question: Question, seconds: float) -> float | None:
    """Return measured seconds as the median MFU of the other sources has them; None for adapters."""
    if question.layout.lora_rank:
        return None
    others = [(alike, share) for name, alike, share in reached() if name != source]
    mine = [share for alike, share in others if alike == kind(question)] or [
        share for alike, share in others if alike.split()[2] == kind(question).split()[2]
    ]
    return seconds * mfu(question, seconds) / statistics.median(mine)


def _simumax_rows() -> list[dict[str, Any]]:
    return [each["row"] for each in megatron_rows.ROWS if each["row"]["id"] in SIMUMAX]


def of_simumax(kernels: str) -> Group:
    """Return SimuMax's runs; `kernels`: the file for `--rates`."""
    rows = [as_simumax(row) for row in _simumax_rows()]
    took = [SIMUMAX[row["id"]]["seconds"] for row in rows]
    ours, rated = ([found["step_seconds"] for found in answer_rows(rows, rates=rates)] for rates in ("", kernels))
    theirs = [SIMUMAX[row["id"]]["their_seconds"] for row in rows]
    base = [one_mfu("simumax", read_line(row), real) for row, real in zip(rows, took, strict=True)]
    return Group("SimuMax, B200", took, {OURS: ours, RATED: rated, "SimuMax's forecast": theirs, BASE: base})


def of_configurations() -> list[Group]:
    """Return the runs of the other complete configurations."""
    page = [line.split(" | ") for line in shown(TABLE_PAGE, calibrate_outside.MARKS).splitlines()[2:] if "|" in line]
    sources: dict[str, list[tuple[dict[str, Any], float]]] = defaultdict(list)
    for line, cells in zip(_lines(calibrate_outside.RUNS), page, strict=True):
        sources[line["id"].rpartition("-")[0]].append((line, float(cells[3].split()[0])))
    sources.pop("simumax")  # above
    groups = []
    for source, mine in sources.items():
        took = [line["measured"]["seconds"] for line, _ in mine]
        base = [one_mfu(source, read_line(line), one) for (line, _), one in zip(mine, took, strict=True)]
        groups.append(Group(source, took, {OURS: [ours for _, ours in mine], BASE: base}))
    return groups


def of_older_sources() -> list[Group]:
    """Return the runs of the sources that calculon takes; ours are the forecasts of the table of layouts."""
    errors = json.loads(coverage.ERRORS.read_text(encoding="utf-8"))["layouts"]["dense"]
    dense = [run for run in runs() if not run.mixed]
    sources: dict[str, list[tuple[Run, float]]] = defaultdict(list)
    for source in SOURCES:
        mine = [run for run in dense if run.source == source]
        for run, error in zip(mine, errors[source], strict=True):  # log(measured / forecast)
            sources[group_of(run)].append((run, run.seconds / math.exp(error)))
    groups = []
    for name, pairs in sorted(sources.items()):
        theirs = [CALCULON.get(str(run.line["id"]), {}).get("seconds") for run, _ in pairs]
        base = [one_mfu(run.source, run.question, run.seconds) for run, _ in pairs]
        forecasts = {OURS: [ours for _, ours in pairs], "calculon": theirs, BASE: base}
        groups.append(Group(name, [run.seconds for run, _ in pairs], forecasts))
    return groups


def seconds_table(kernels: str) -> str:
    """Write the median errors of seconds as Markdown, by source; `kernels`: the file for `--rates`."""
    groups = [of_simumax(kernels), *of_configurations(), *of_older_sources()]
    return _table(groups, [OURS, RATED, "SimuMax's forecast", "calculon", BASE])


def main(kernels: str) -> None:
    """Write both tables."""
    write_between(TABLE_PAGE, BYTES, bytes_table([*of_megatron(), *of_kempner(), *on_one_gpu()]))
    write_between(TABLE_PAGE, SECONDS, seconds_table(kernels))


if __name__ == "__main__":
    main(sys.argv[1])
