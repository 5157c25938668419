"""Which recipes fit a GPU, and which of them takes the least time: answers at once, from plans made before.

`python -m helpers chooser` plans every way of training below for every model and length, in some minutes, and writes
`chooser.json`. Looking something up takes no time, so a figure can answer while a control moves.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .catalog.gpus import find_gpu
from .config import TrainingConfig
from .deep import DeepPlan, plan_deep

TABLE = Path(__file__).with_suffix(".json")
MODELS = ("llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-2-13b")
LENGTHS = (512, 2048)  # tokens in a sequence
_MICRO_BATCHES = 2  # in a plan; from the second on, they are alike
_CHECKPOINTED = {"checkpointing": "every"}
WAYS = {
    "full, FP32": {"precision": "fp32", "optimizer_impl": "fused"},
    "full, FP32, checkpointing": {"precision": "fp32", "optimizer_impl": "fused", **_CHECKPOINTED},
    "full, BF16 autocast": {"precision": "bf16-amp", "optimizer_impl": "fused"},
    "full, BF16 autocast, checkpointing": {"precision": "bf16-amp", "optimizer_impl": "fused", **_CHECKPOINTED},
    "full, FP16 autocast, checkpointing": {"precision": "fp16-amp", "optimizer_impl": "fused", **_CHECKPOINTED},
    "full, BF16 weights": {"optimizer_impl": "fused"},
    "full, BF16 weights, checkpointing": {"optimizer_impl": "fused", **_CHECKPOINTED},
    "full, BF16 weights, 8-bit AdamW, checkpointing": {"optimizer": "adamw-8bit", **_CHECKPOINTED},
    "full, BF16 weights, SGD, checkpointing": {"optimizer": "sgd", **_CHECKPOINTED},
    "LoRA r=16": {"lora_rank": 16, "optimizer_impl": "fused"},
    "LoRA r=16, checkpointing": {"lora_rank": 16, "optimizer_impl": "fused", **_CHECKPOINTED},
    "QLoRA r=16, checkpointing": {"lora_rank": 16, "quantize": "nf4-dq", "optimizer_impl": "fused", **_CHECKPOINTED},
    "QLoRA r=16, FP16 autocast, checkpointing": {
        "lora_rank": 16,
        "quantize": "nf4-dq",
        "precision": "fp16-amp",
        "optimizer_impl": "fused",
        **_CHECKPOINTED,
    },
}


@dataclass(frozen=True)
class Choice:
    """A way to train, on one GPU.

    Attributes:
        fits: whether the GPU has room for all that the allocator may reserve.
        emulated: whether it asks for BF16 on a GPU that has none: it runs there, at the rate of FP32.
        seconds: an update cannot take less; a bound of arithmetic and memory traffic, not a forecast.
    """

    name: str
    recipe: TrainingConfig
    peak_bytes: int
    reserved_bytes: int
    room_bytes: int
    fits: bool
    emulated: bool
    seconds: float


def _recipes() -> dict[tuple[str, int, str], TrainingConfig]:
    return {
        (model, seq, name): TrainingConfig(model, seq=seq, gradient_accumulation_steps=_MICRO_BATCHES, **options)
        for model in MODELS
        for seq in LENGTHS
        for name, options in WAYS.items()
    }


def write_table() -> None:
    """Plan everything and write `chooser.json`."""
    recipes = _recipes()
    plans = plan_deep(list(recipes.values()), progress=True)
    rows = [
        {"model": model, "seq": seq, "way": way, "plan": {k: v for k, v in asdict(plan).items() if k != "recipe"}}
        for (model, seq, way), plan in zip(recipes, plans, strict=True)
    ]
    lines = ",\n".join(json.dumps(row) for row in rows)
    TABLE.write_text(f"[\n{lines}\n]\n", encoding="utf-8", newline="\n")


def choose(gpu: str, model: str, seq: int, batch: int) -> list[Choice]:
    """Return the ways to train `model` on `gpu` with `batch` sequences to an update: what fits first.

    Of what fits, the least time at the bound comes first; of the rest, the smallest. A micro-batch is one sequence, so
    the batch costs time but no memory; the optimizer's own traffic comes once an update, however large the batch.

    Raises:
        RecipeError: no such GPU.
        LookupError: a model or a length that the table does not hold.
    """
    card = find_gpu(gpu)
    rows = [r for r in json.loads(TABLE.read_text(encoding="utf-8")) if (r["model"], r["seq"]) == (model, seq)]
    if not rows:
        raise LookupError(f"The table holds {', '.join(MODELS)} with {' or '.join(map(str, LENGTHS))} tokens.")
    recipes = _recipes()
    choices, room = [], card.room
    for row in rows:
        plan = DeepPlan(recipes[model, seq, row["way"]], **row["plan"])
        choices.append(
            Choice(
                name=row["way"],
                recipe=replace(plan.recipe, gradient_accumulation_steps=batch),
                peak_bytes=plan.allocated_bytes,
                reserved_bytes=plan.reserved_bytes,
                room_bytes=room,
                fits=plan.reserved_bytes <= room,
                emulated=plan.recipe.precision.startswith("bf16") and not card.bf16,
                seconds=plan.roofline_seconds(card, batch),
            )
        )
    fastest, ways = min(c.seconds for c in choices), list(WAYS)

    def rank(c: Choice) -> tuple[bool, float, int]:  # of two that cost the same, the one that changes less
        return not c.fits, round(c.seconds / fastest, 2) if c.fits else c.reserved_bytes, ways.index(c.name)

    return sorted(choices, key=rank)
