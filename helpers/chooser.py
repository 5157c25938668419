"""Which recipes fit a GPU, and which of them is the fastest: answers at once, from plans made before.

`python -m helpers chooser` plans every way of training below for every model and length, in some minutes, and writes
`chooser.json`. Looking something up takes no time, so a figure can answer while a control moves.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .planner.catalog import find_gpu
from .planner.deep import plan_deep
from .planner.recipe import Recipe
from .planner.report import CONTEXT

TABLE = Path(__file__).with_suffix(".json")
MODELS = ("llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-2-13b")
LENGTHS = (512, 2048)  # tokens in a sequence
_PIECES = 2  # micro-batches in a plan; from the second on, they are alike
_CHECKPOINTED = {"checkpointing": "every"}
WAYS = {
    "whole, FP32": {"precision": "fp32", "optimizer_impl": "fused", **_CHECKPOINTED},
    "whole, BF16 autocast": {"precision": "bf16-amp", "optimizer_impl": "fused", **_CHECKPOINTED},
    "whole, BF16 weights": {"optimizer_impl": "fused", **_CHECKPOINTED},
    "whole, BF16 weights, 8-bit AdamW": {"optimizer": "adamw-8bit", **_CHECKPOINTED},
    "whole, BF16 weights, SGD": {"optimizer": "sgd", **_CHECKPOINTED},
    "LoRA r=16": {"lora_rank": 16, "optimizer_impl": "fused"},
    "LoRA r=16, checkpointing": {"lora_rank": 16, "optimizer_impl": "fused", **_CHECKPOINTED},
    "QLoRA r=16, checkpointing": {"lora_rank": 16, "quantize": "nf4-dq", "optimizer_impl": "fused", **_CHECKPOINTED},
}


@dataclass(frozen=True)
class Choice:
    """A way to train, on one GPU.

    Attributes:
        fits: whether the allocator has room for all it may reserve.
        seconds: an update cannot take less; a bound, not a forecast.
    """

    name: str
    recipe: Recipe
    peak_bytes: int
    reserved_bytes: int
    room_bytes: int
    fits: bool
    seconds: float


def _recipes() -> dict[tuple[str, int, str], Recipe]:
    return {
        (model, seq, name): Recipe(model, seq=seq, accumulate=_PIECES, **options)
        for model in MODELS
        for seq in LENGTHS
        for name, options in WAYS.items()
    }


def write_table() -> None:
    """Plan everything and write `chooser.json`."""
    recipes = _recipes()
    plans = plan_deep(list(recipes.values()), progress=True)
    rows = [
        {"model": model, "seq": seq, "way": way} | {k: v for k, v in asdict(plan).items() if k != "recipe"}
        for (model, seq, way), plan in zip(recipes, plans, strict=True)
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    TABLE.write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")


def choose(gpu: str, model: str, seq: int, batch: int) -> list[Choice]:
    """Return the ways to train `model` on `gpu` with `batch` sequences to an update: what fits first, fastest first.

    A micro-batch is one sequence, so the batch costs time and no memory.

    Raises:
        RecipeError: no such GPU.
        LookupError: a model or a length that the table does not hold.
    """
    card = find_gpu(gpu)
    rows = [r for r in json.loads(TABLE.read_text(encoding="utf-8")) if (r["model"], r["seq"]) == (model, seq)]
    if not rows:
        raise LookupError(f"The table holds {', '.join(MODELS)} with {' or '.join(map(str, LENGTHS))} tokens.")
    recipes = _recipes()
    choices = []
    for row in rows:
        room = card.total - CONTEXT
        seconds = row["at_least_seconds"][card.name] * batch / _PIECES
        recipe = replace(recipes[model, seq, row["way"]], accumulate=batch)
        fits = row["reserved_bytes"] <= room
        choices.append(Choice(row["way"], recipe, row["allocated_bytes"], row["reserved_bytes"], room, fits, seconds))
    fastest, ways = min(c.seconds for c in choices), list(WAYS)

    def rank(c: Choice) -> tuple[bool, float, int]:  # of two that cost the same, the one that changes less
        return not c.fits, round(c.seconds / fastest, 2) if c.fits else c.reserved_bytes, ways.index(c.name)

    return sorted(choices, key=rank)
