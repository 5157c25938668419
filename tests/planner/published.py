"""Measured figures that others have published, against the planner's predictions.

Run `python -m tests.planner.published` to write the table into docs/accuracy.md and its summary into README.md;
`test_published.py` holds both to it.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.planner import Plan, Recipe, plan_many

ROOT = Path(__file__).parents[2]
TABLE_PAGE, HEADLINE_PAGE = ROOT / "docs" / "accuracy.md", ROOT / "README.md"
TABLE_MARKS = "<!-- published: python -m tests.planner.published writes this -->", "<!-- /published -->"
HEADLINE_MARKS = "<!-- headline: python -m tests.planner.published writes this -->", "<!-- end of headline -->"
IBM = "https://github.com/foundation-model-stack/fms-acceleration/blob/main/scripts/benchmarks/refs/a100_80gb.csv"
IBM_LIGER = IBM.replace("a100_80gb.csv", "a100_80gb_liger.csv")
LITGPT = "https://github.com/Lightning-AI/litgpt/blob/main/config_hub/finetune/README.md"
LITGPT_TABLES = "https://github.com/Lightning-AI/litgpt/blob/main/tutorials/resource-tables.md"
TORCHTUNE = "https://github.com/pytorch/torchtune/blob/main/README.md"
TUTORIAL = "https://docs.pytorch.org/tutorials/intermediate/optimizer_step_in_backward_tutorial.html"
RASBT = "https://github.com/rasbt/pytorch-memory-optim/blob/main/logs.md"


@dataclass(frozen=True)
class Figure:
    """One measurement: `said` bytes of `metric` ("allocated" or "reserved") for `recipe`, read at `source`.

    `miss` says why the planner is known to be off, where it is.
    """

    recipe: Recipe
    said: float
    metric: str
    where: str
    source: str
    miss: str = ""


def _ibm(said: int, batch: int, **more: object) -> Figure:
    recipe = Recipe("mistral-7b", micro_batch_size=batch, seq=4096, checkpointing="every", **more)
    return Figure(recipe, said, "allocated", "IBM fms-acceleration, torch 2.4.1, A100", IBM)


def _litgpt(said: float, model: str, source: str, **more: object) -> Figure:
    where = "litgpt, A10G" if source == LITGPT else "litgpt, torch 2.1, A100"
    return Figure(Recipe(model, **more), said * 1e9, "allocated", where, source)


def _rasbt(said: float, precision: str, batch: int, miss: str = "", **more: object) -> Figure:
    # The scripts zero gradients after the forward pass, so that those of the last step live through it.
    options = {"optimizer": "adam", "set_to_none": False, **more}
    recipe = Recipe("vit-l-16", precision=precision, micro_batch_size=batch, **options)
    return Figure(recipe, said * 1e9, "reserved", "rasbt/pytorch-memory-optim, torch 2.1 dev", RASBT, miss)


_QKVO = {"lora_rank": 16, "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj"), "lora_dropout": 0.1}
_QV8 = {"lora_rank": 8, "lora_targets": ("q_proj", "v_proj"), "seq": 1304}
_QV32 = {"lora_rank": 32, "lora_targets": ("q_proj", "v_proj")}
_OLD = {"quantized_inputs": True}  # of bitsandbytes 0.41

FIGURES = (
    _ibm(72_434_853_376, 4),
    _ibm(25_653_881_344, 4, **_QKVO),
    _ibm(36_643_613_184, 8, **_QKVO),
    _ibm(15_323_147_776, 4, quantize="nf4-dq", **_QKVO),
    _ibm(26_312_879_616, 8, quantize="nf4-dq", **_QKVO),
    _ibm(20_556_796_416, 4, quantize="nf4-dq", precision="bf16-amp", **_QKVO),
    _ibm(36_801_860_096, 8, quantize="nf4-dq", precision="bf16-amp", **_QKVO),
    Figure(
        Recipe("llama-3.1-8b", micro_batch_size=4, seq=4096, checkpointing="every"),
        80_318_097_408,
        "allocated",
        "IBM fms-acceleration, fused kernels, A100",
        IBM_LIGER,
    ),
    Figure(
        Recipe("llama-3.2-3b", micro_batch_size=2, seq=4096, optimizer_impl="fused"),
        60.0 * 2**30,
        "allocated",
        "torchtune, packed sequences, A100",
        TORCHTUNE,
    ),
    _litgpt(19.77, "llama-2-7b", LITGPT, micro_batch_size=2, **_QV32),
    _litgpt(19.73, "llama-3.1-8b", LITGPT, **_QV32),
    _litgpt(20.66, "mistral-7b", LITGPT, micro_batch_size=2, **_QV32),
    _litgpt(14.10, "tinyllama-1.1b", LITGPT, micro_batch_size=4, gradient_accumulation_steps=8),
    _litgpt(21.30, "llama-2-7b", LITGPT_TABLES, **_QV8),
    _litgpt(29.07, "llama-2-7b", LITGPT_TABLES, micro_batch_size=2, **_QV8),
    _litgpt(38.12, "llama-2-13b", LITGPT_TABLES, **_QV8),
    Figure(
        Recipe("vit-l-16", precision="fp32", optimizer="adam"), 6e9, "allocated", "PyTorch tutorial: ~6 GB", TUTORIAL
    ),
    Figure(
        Recipe(
            "vit-l-16", precision="fp32", optimizer="adam", optimizer_impl="for-loop", step_in_backward=True
        ),
        4e9,
        "allocated",
        "PyTorch tutorial: ~4 GB",
        TUTORIAL,
    ),
    Figure(
        Recipe("llama-2-7b", quantize="nf4", **_OLD, **_QV8), 14.14e9, "allocated", "litgpt, torch 2.1, A100",
        LITGPT_TABLES,
    ),
    Figure(
        Recipe("llama-2-13b", quantize="nf4-dq", **_OLD, **_QV8), 22.55e9, "allocated", "litgpt, torch 2.1, A100",
        LITGPT_TABLES,
    ),
    _rasbt(26.79, "fp32", 64),
    _rasbt(18.21, "fp16-amp", 64),
    _rasbt(13.82, "bf16", 64),
    _rasbt(5.69, "bf16", 16),
    _rasbt(
        3.91, "bf16", 4, gradient_accumulation_steps=4,
        miss="Adam of torch 2.1 made two temporary copies where today's makes one",
    ),
    _rasbt(2.02, "bf16", 4, gradient_accumulation_steps=4, optimizer="sgd"),
)  # fmt: skip


def error(figure: Figure, plan: Plan) -> float:
    """Relative error of the prediction; for reserved memory, the distance to the interval."""
    if figure.metric == "allocated":
        return plan.peak_allocated_bytes / figure.said - 1
    low, high = plan.reserved_bytes
    return 0.0 if low <= figure.said <= high else (low if figure.said < low else high) / figure.said - 1


def verdict(figure: Figure, plan: Plan) -> str:
    """Say what the comparison is worth."""
    if figure.metric == "allocated" and figure.said < plan.floor_bytes:
        return "suspicious: below weights + gradients + optimizer state"
    return f"missed: {figure.miss}" if figure.miss else ""


def row(figure: Figure, plan: Plan) -> str:
    """Write a prediction beside a published figure, in GB, as a row of the table."""
    if figure.metric == "allocated":
        predicted, off = f"{plan.peak_allocated_bytes / 1e9:.2f}", f"{error(figure, plan):+.1%}"
    else:
        low, high = (n / 1e9 for n in plan.reserved_bytes)
        predicted, off = f"{low:.2f} to {high:.2f}", f"{error(figure, plan):+.1%}" if error(figure, plan) else "inside"
    note = f"; {verdict(figure, plan)}" if verdict(figure, plan) else ""
    words = figure.recipe.summary + ("" if plan.recipe.model.startswith("vit") else f", {figure.recipe.seq} tokens")
    source = f"[{figure.where}]({figure.source}){note}"
    return f"| {words} | {figure.metric} | {predicted} | {figure.said / 1e9:.2f} | {off} | {source} |"


def table(plans: list[Plan]) -> str:
    """Write predictions beside published figures as Markdown, with a summary."""
    lines = ["| recipe | metric | predicted | published | error | source |", "|---|---|---|---|---|---|"]
    lines += [row(figure, plan) for figure, plan in zip(FIGURES, plans, strict=True)]
    median, largest = errors(plans)
    pairs = zip(FIGURES, plans, strict=True)
    missed = any(figure.metric == "allocated" and verdict(figure, plan) for figure, plan in pairs)
    summary = (
        f"For allocated memory, the median error is {median:.1%}, and the largest {largest:.1%}"
        f"{', both without the misses' if missed else ''}. "
        "All figures are in GB."
    )
    return "\n".join([*lines, "", summary])


def errors(plans: list[Plan]) -> tuple[float, float]:
    """Return the median and the largest relative error of allocated memory, where no miss is known."""
    pairs = zip(FIGURES, plans, strict=True)
    off = [
        abs(error(figure, plan)) for figure, plan in pairs if figure.metric == "allocated" and not verdict(figure, plan)
    ]
    return statistics.median(off), max(off)


def headline(plans: list[Plan]) -> str:
    """Sum the comparison up in three sentences."""
    median, largest = errors(plans)
    pairs = list(zip(FIGURES, plans, strict=True))
    allocated = [pair for pair in pairs if pair[0].metric == "allocated"]
    misses = [abs(error(*pair)) for pair in allocated if verdict(*pair)]
    reserved = [error(*pair) for pair in pairs if pair[0].metric == "reserved"]
    missed = f"the planner misses {len(misses)}, by up to {max(misses):.1%}. For the others, its" if misses else "the"
    return (
        f"{'Of' if misses else 'For'} {len(allocated)} published peaks of allocated memory, {missed} "
        f"median error is {median:.1%} and {'its' if misses else 'the'} largest {largest:.1%}. "
        f"Of {len(reserved)} published figures for reserved memory, {reserved.count(0)} fall inside the predicted "
        "interval. A table lists every figure and, where known, the cause of each miss."
    )


def predict(figures: Sequence[Figure] = FIGURES) -> list[Plan]:
    """Plan the recipe of each figure."""
    return plan_many([figure.recipe for figure in figures], progress=sys.stderr.isatty())


def shown(page: Path, marks: tuple[str, str]) -> str:
    """Return what stands in `page` between two marks."""
    return page.read_text(encoding="utf-8").partition(marks[0])[2].partition(marks[1])[0].strip()


def write_between(page: Path, marks: tuple[str, str], text: str) -> None:
    before, begin, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8", newline="\n")


def main() -> None:
    """Write the table into docs/accuracy.md and the headline into README.md."""
    plans = predict()
    write_between(TABLE_PAGE, TABLE_MARKS, table(plans))
    write_between(HEADLINE_PAGE, HEADLINE_MARKS, headline(plans))


if __name__ == "__main__":
    main()
