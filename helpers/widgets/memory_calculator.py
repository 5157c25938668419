"""Memory calculator: turn the knobs of a recipe, and see the planner's answer as bars.

A plan takes seconds and a picture should take none, so every combination of the knobs is planned in advance:
`python -m helpers plans` writes the answers to `memory_calculator.json`, in the order of `itertools.product`.
"""

import functools
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from ..core.colors import COLORS
from ..core.files import atomic_write
from ..core.units import GiB, human_bytes
from ..meter.categories import CATEGORIES
from ..planner import Recipe, plan_many
from .explore import explore

TABLE = Path(__file__).with_suffix(".json")
OPTIMIZERS: Mapping[str, tuple[str, str]] = {
    "AdamW": ("adamw", "foreach"),
    "AdamW, fused": ("adamw", "fused"),
    "AdamW, 8 bit": ("adamw-8bit", "foreach"),
    "SGD": ("sgd", "foreach"),
}
SHOWN_GPUS = {"8 GiB": 8, "16 GiB": 16, "24 GiB": 24, "40 GiB": 40, "80 GiB": 80}
KNOBS: Mapping[str, tuple] = {
    "model": ("gpt2", "llama-3.2-1b", "llama-2-7b"),
    "batch": (1, 4, 16),
    "tokens": (256, 1024),
    "precision": ("fp32", "bf16-amp", "bf16"),
    "optimizer": tuple(OPTIMIZERS),
    "checkpointing": ("none", "every"),
    "LoRA_rank": (0, 16),
}
START = ("llama-3.2-1b", 1, 1024, "bf16-amp", "AdamW", "none", 0)


class Answer(NamedTuple):
    """What the picture shows of a plan: bytes by `CATEGORIES` at the peak, the reserved interval, the moment."""

    categories: list[int]
    reserved: tuple[int, int]
    peak_at: str


def explore_memory() -> None:
    """Show the calculator."""
    explore(
        lambda **knobs: calculator_figure(_answers()[tuple(knobs.values())]),
        alt="Bars of the memory that the planner predicts for a recipe, by category, with the sizes of GPUs as lines.",
        **{name: (first, values) for first, (name, values) in zip(START, KNOBS.items(), strict=True)},
    )


def calculator_figure(answer: Answer) -> Figure:
    """Draw the categories of the peak as one bar, the reserved interval as another, and GPU sizes as lines."""
    figure = Figure(figsize=(8, 2.9), layout="constrained")
    axes = figure.add_subplot()
    left = 0.0
    for category, color, held in zip(CATEGORIES, COLORS, answer.categories, strict=True):
        width = held / GiB
        if width >= 0.005:  # less would be labeled 0.00
            axes.barh("allocated", width, left=left, color=color, label=f"{category}: {width:.2f} GiB")
            left += width
    low, high = (n / GiB for n in answer.reserved)
    axes.barh("reserved", low, color="#DDDDDD")
    axes.barh("reserved", high - low, left=low, color="#DDDDDD", hatch="///", edgecolor="white")
    widest = 1.15 * high
    for name, size in SHOWN_GPUS.items():
        if size < widest:
            axes.axvline(size, color="black", lw=1)
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            axes.text(size, 0.5, name, ha="center", va="center", fontsize=8, bbox=box)
    axes.invert_yaxis()
    title = f"peak {human_bytes(sum(answer.categories))}\n{answer.peak_at}"
    axes.set(xlim=(0, widest), xlabel="GiB", title=title)
    axes.title.set_fontsize(9)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def write_table() -> None:
    """Plan every combination and write the table: half an hour on two cores."""
    rows = []
    for plan in plan_many([_recipe(knobs) for knobs in _combinations()], progress=True):
        categories = [plan.at_peak[category] for category in CATEGORIES]
        rows.append(json.dumps(Answer(categories, plan.reserved_bytes, plan.peak_at)))
    atomic_write(TABLE, "[\n" + ",\n".join(rows) + "\n]\n")


@functools.cache
def _answers() -> dict[tuple, Answer]:
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    return {knobs: Answer(*row) for knobs, row in zip(_combinations(), rows, strict=True)}


def _combinations() -> list[tuple]:
    return list(itertools.product(*KNOBS.values()))


def _recipe(knobs: tuple) -> Recipe:
    model, batch, tokens, precision, optimizer, checkpointing, lora_rank = knobs
    name, how = OPTIMIZERS[optimizer]
    return Recipe(
        model,
        micro_batch_size=batch,
        seq=tokens,
        precision=precision,
        optimizer=name,
        optimizer_impl=how,
        checkpointing=checkpointing,
        lora_rank=lora_rank,
    )
