"""What each framework assumes, on the page: `python -m tests.planner.frameworks_table` writes it from the habits."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from helpers.core.files import ROOT
from helpers.planner.rows.habits import HABITS, USUAL, Habits

from .published import write_between

PAGE = ROOT / "docs" / "planner.md"
MARKS = "<!-- frameworks: python -m tests.planner.frameworks_table writes this -->", "<!-- /frameworks -->"
FIELDS = {  # of a habit that is a field of a row under another name
    "recompute": "checkpointing",
    "fused": "compile",
    "gated": "arch.gated",
    "layer_norm": "arch.layer_norm",
    "vocab": "arch.vocab",
    "logs": "stage",
}
WORDS = {  # of a habit that is more than the default of a field
    "network": "{} GB/s between nodes per GPU",
    "pace": "all seconds x {}",
    "slow_h100": "`gpu` h100 is h100-96gb",
    "casts_weights": "`precision` bf16-amp is bf16",
    "picks_attention": "`attention` fused is cudnn on Hopper and flash elsewhere",
    "plain_tokens": "`sequence_parallel` false {}",
    "compiles_fp8": "`compile` true with fp8",
    "spreads_experts": "`expert`: all ranks of a stage, up to 64",
    "own_length": "`seq` as the model's own",
    "fused_loss": "`fused_loss` true is {}",
    "deepspeed": "DeepSpeed's pipeline engine",
    "shares_ends": "`ends_as_blocks` true if the stages divide 2 + layers but not layers alone",
    "as_command": "what is left out is as in `plan`",
}
STATED = {  # every field that a framework has a default of, said
    **{"precision": "bf16-amp", "zero": 1, "checkpointing": "none", "schedule": "interleaved", "virtual_stages": 2},
    **{"compile": True, "sequence_parallel": True, "attention": "flash", "tensor_overlap": False, "dropout": 0},
    **{"accumulate_whole": False, "plain_ends": False, "attention_mask": False, "cuda_graphs": False, "packed": False},
    **{
        "head_dummy": False,
        "buffer_passes": False,
        "data_overlap": True,
        "seq": 512,
        "fused_loss": "te",
        "ends_as_blocks": False,
    },
    **{
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "expert": 1,
        "stage": "fullest",
        "reshard_after_forward": True,
    },
    **{"wgrad_fusion": True, "wide_gradients": True},
}


def text(habits: Mapping[str, Habits] = HABITS) -> str:
    """Return the lines of the table: what each framework has that a row of its engine without a framework has not."""
    lines = ["| framework | engine | its own defaults |", "|---|---|---|"]
    for name, mine in habits.items():
        plain = USUAL.get(mine.engine, USUAL["torchtitan"])
        pairs = ((each.name, getattr(mine, each.name), getattr(plain, each.name)) for each in fields(Habits))
        own = [_words(habit, value) for habit, value, usual in pairs if value != usual and habit not in _APART]
        lines.append(f"| `{name}` | {mine.engine} | {', '.join(own)} |")
    return "\n".join(lines)


_APART = ("engine", "as_command")


def _words(habit: str, value: Any) -> str:
    value = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}[value] if habit == "zero" else value
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return WORDS[habit].format(value) if habit in WORDS else f"`{FIELDS.get(habit, habit)}` {said}"


def main() -> None:
    """Write the table."""
    write_between(PAGE, MARKS, text())


if __name__ == "__main__":
    main()
