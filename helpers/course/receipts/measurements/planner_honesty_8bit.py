"""The planner's peak against the peak of two real steps with bitsandbytes' 8-bit AdamW."""

from dataclasses import replace
from importlib.util import find_spec

import torch

from ....claims.claims import Claims
from ....planner import Recipe
from ..steps import Skip
from ._honesty import hold


def _recipes(device: torch.device) -> list[Recipe]:
    """Return a GPT and a Llama, on a GPU; on a CPU the course's GPT."""
    if device.type != "cuda":
        gpt = Recipe("small-gpt", precision="fp32", micro_batch_size=8, seq=256, optimizer="adamw-8bit")
        return [gpt, replace(gpt, checkpointing="every")]
    gpt = Recipe("gpt2", micro_batch_size=4, seq=1024, optimizer="adamw-8bit")
    llama = Recipe("llama-3.2-1b", micro_batch_size=1, seq=1024, checkpointing="every", optimizer="adamw-8bit")
    return [gpt, replace(gpt, precision="bf16-amp"), replace(gpt, checkpointing="every"), llama]


def measure(claims: Claims, device: torch.device) -> None:
    """Hold each recipe against its plan, in which a stand-in takes the place of bitsandbytes."""
    if find_spec("bitsandbytes") is None:
        raise Skip("8-bit optimizers need bitsandbytes")
    hold(claims, _recipes(device), device)
