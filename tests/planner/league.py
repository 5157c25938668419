"""The planner beside what others forecast of the same runs: the league tables of docs/accuracy.md, source by source.

`python -m tests.planner.league KERNELS.json` writes them. The file is SimuMax's table of measured kernels,
configs/system/b200_bf16_ceperm.json of its repository; a forecast with `--rates` needs it. Where another table of the
page has the planner's figure of a run, it is read there. The rivals' formulas are short, and their own:

- EleutherAI's `calc_mem` (calc/calc_transformer_mem.py of EleutherAI/cookbook);
- DeepSpeed's `estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs`
  (runtime/zero/stage_1_and_2.py and stage3.py), without offloading;
- `accelerate estimate-memory`: `estimate_training_usage` (commands/estimate.py).
"""

import json
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
from helpers.planner.layout.arch import Arch
from helpers.planner.rows.answers import answer_rows
from helpers.planner.rows.line import Question, read_line

from tests.planner import calibrate_outside, megatron_rows
from tests.planner.layout_runs import RUNS
from tests.planner.published import FIGURES, TABLE_MARKS, TABLE_PAGE, Figure, shown, write_between

BYTES = "<!-- league: python -m tests.planner.league KERNELS.json writes this -->", "<!-- /league -->"
SECONDS = (
    "<!-- league's seconds: python -m tests.planner.league KERNELS.json writes this -->",
    "<!-- /league's seconds -->",
)
SIMUMAX = json.loads(Path(__file__).with_name("simumax_forecasts.json").read_text(encoding="utf-8"))["runs"]
_LOW, _HIGH, _STATES, _BUCKET, _LIVE = 2, 4, 12, 5e8, 1e9  # the defaults of EleutherAI's script


@dataclass(frozen=True)
class Job:
    """A run, as a formula of bytes wants to know it."""

    source: str
    arch: Arch
    gpus: int
    tensor: int
    pipeline: int
    context: int
    stage: int  # of ZeRO
    micro_batch_size: int
    seq: int
    recomputes: bool
    precision: str

    @property
    def splits(self) -> bool:
        """Whether ranks split the model or its tokens."""
        return max(self.tensor, self.pipeline, self.context) > 1


def eleuther(job: Job) -> float | None:
    """Return the bytes that EleutherAI's script has for a rank; None with experts or context ranks."""
    arch = job.arch
    if arch.experts or job.context > 1:
        return None
    hidden, layers, heads = arch.hidden, arch.layers, arch.heads
    attention = 2 * (1 + arch.kv_heads / heads) * layers * hidden * hidden
    perceptron = (3 if arch.gated else 2) * layers * hidden * arch.ffn
    rest = 2 * arch.vocab * hidden + hidden * job.seq + 8 * hidden * layers + 2 * hidden
    parameters = rest + attention + perceptron
    width = _HIGH if job.precision == "fp32" else _LOW
    held = parameters * width / (job.tensor * job.pipeline) / (job.gpus if job.stage == 3 else 1)
    gradients = parameters * _HIGH / (job.gpus if job.stage >= 2 else 1)
    states = parameters * _STATES / (job.gpus if job.stage >= 1 else 1)
    sent = ((_BUCKET if job.stage >= 1 else 0) + (_LIVE if job.stage == 3 else 0)) * width if job.gpus > 1 else 0
    scores = 0 if job.recomputes else (2 * _LOW + 1) * heads * job.seq / hidden
    kept = job.seq * job.micro_batch_size * hidden * layers * (16 * _LOW + 2 + scores)
    return held + gradients + states + sent + kept / job.tensor


def deepspeed(job: Job) -> float | None:
    """Return the bytes that DeepSpeed's estimators have for a rank; None but for ZeRO-2 and 3 of a whole model."""
    if job.splits or job.stage < 2:
        return None
    parameters = job.arch.count()
    if job.stage == 2:
        return 4 * parameters + 16 * parameters / job.gpus
    return 4 * job.arch.vocab * job.arch.hidden + 18 * parameters / job.gpus


def accelerate(job: Job) -> float | None:
    """Return the bytes that accelerate's command has for training with Adam; None where ranks split anything."""
    if job.splits or (job.stage and job.gpus > 1):
        return None
    return (16 if job.precision == "fp32" else 8) * job.arch.count()


RIVALS = {
    "EleutherAI's script": eleuther,
    "DeepSpeed's estimator": deepspeed,
    "`accelerate estimate-memory`": accelerate,
}


def job_of(source: str, question: Question) -> Job:
    """Return the job of a line."""
    layout = question.layout
    stage = {"none": 0}.get(layout.zero) if layout.zero == "none" else int(layout.zero[-1])
    sizes = (layout.ranks, layout.tensor, layout.pipeline, layout.context)
    recomputes = layout.recompute == "full"
    rest = (layout.micro_batch_size, layout.seq, recomputes, layout.precision)
    return Job(source, layout.arch, *sizes, stage or 0, *rest)


def _job_of_figure(figure: Figure) -> Job:
    recipe = figure.recipe
    rest = (recipe.micro_batch_size, recipe.seq, recipe.checkpointing == "every", recipe.precision)
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
    """Return the runs of Megatron-LM whose bytes the page has, SimuMax's among them."""
    lines = shown(TABLE_PAGE, megatron_rows.MARKS).splitlines()[2:]
    entries = []
    for each, line in zip(megatron_rows.ROWS, lines, strict=True):
        name = each["row"]["id"]
        theirs = SIMUMAX[name]["their_gib"] * GiB if name in SIMUMAX else None
        source = "SimuMax, B200" if theirs else "Megatron-LM's tests"
        job = job_of(source, read_line(each["row"]))
        entries.append((job, each["peak_bytes"], float(line.split(" | ")[4]) * 1e9, theirs))
    return entries


def of_kempner() -> list[Entry]:
    """Return KempnerForge's runs, which state allocated bytes."""
    lines = [line for line in _lines(RUNS) if line["id"].startswith("kempner") and line["measured"]["gib"]]
    ours = answer_rows(lines)
    return [
        (job_of("KempnerForge", read_line(line)), line["measured"]["gib"] * GiB, found["peak_allocated_bytes"], None)
        for line, found in zip(lines, ours, strict=True)
    ]


def bytes_table(entries: Iterable[Entry]) -> str:
    """Write the median errors of bytes as Markdown, by source."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry[0].source].append(entry)
    lines = [f"| source | runs | ours | SimuMax's forecast | {' | '.join(RIVALS)} |", "|---" * (4 + len(RIVALS)) + "|"]
    for source, mine in groups.items():
        forecasts = [[ours for *_, ours, _ in mine], [theirs for *_, theirs in mine]]
        forecasts += [[rival(job) for job, *_ in mine] for rival in RIVALS.values()]
        cells = [_cell(each, [measured for _, measured, *_ in mine]) for each in forecasts]
        lines.append(f"| {source} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines)


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


def seconds_table(kernels: str) -> str:
    """Write the median errors of seconds as Markdown, by source; `kernels`: the file for `--rates`."""
    lines = [
        "| source | runs | ours | ours with `--rates` | SimuMax's forecast | one MFU for all |",
        "|---|---|---|---|---|---|",
    ]
    rows = [as_simumax(row) for row in _simumax_rows()]
    took = [SIMUMAX[row["id"]]["seconds"] for row in rows]
    forecasts: list[Sequence[float | None]] = [
        *([found["step_seconds"] for found in answer_rows(rows, rates=rates)] for rates in ("", kernels)),
        [SIMUMAX[row["id"]]["their_seconds"] for row in rows],
        [one_mfu("simumax", read_line(row), real) for row, real in zip(rows, took, strict=True)],
    ]
    lines.append(f"| SimuMax, B200 | {len(rows)} | {' | '.join(_cell(each, took) for each in forecasts)} |")
    page = [line.split(" | ") for line in shown(TABLE_PAGE, calibrate_outside.MARKS).splitlines()[2:] if "|" in line]
    groups: dict[str, list[tuple[dict[str, Any], float]]] = defaultdict(list)
    for line, cells in zip(_lines(calibrate_outside.RUNS), page, strict=True):
        groups[line["id"].rpartition("-")[0]].append((line, float(cells[3].split()[0])))
    groups.pop("simumax")  # above
    for source, mine in groups.items():
        real = [line["measured"]["seconds"] for line, _ in mine]
        base = [one_mfu(source, read_line(line), one) for (line, _), one in zip(mine, real, strict=True)]
        cells = [_cell([ours for _, ours in mine], real), "-", "-", _cell(base, real)]
        lines.append(f"| {source} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(kernels: str) -> None:
    """Write both tables."""
    write_between(TABLE_PAGE, BYTES, bytes_table([*of_megatron(), *of_kempner(), *on_one_gpu()]))
    write_between(TABLE_PAGE, SECONDS, seconds_table(kernels))


if __name__ == "__main__":
    main(sys.argv[1])
