"""The planner's peak against the peak of two real steps: Llamas and their like, whole and with LoRA, 1B to 8B."""

from dataclasses import replace

import torch

from ....claims.claims import Claims
from ....planner import Recipe
from ._honesty import hold

_ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def _recipes(device: torch.device) -> list[Recipe]:
    """Return models of 1B to 8B parameters, on a GPU; on a CPU adapters beside the course's GPT."""
    if device.type != "cuda":
        gpt = Recipe(
            "small-gpt", precision="fp32", micro_batch_size=8, seq=256, lora_rank=16, lora_targets=("qkv", "out")
        )
        return [gpt, replace(gpt, checkpointing="every")]
    llama = Recipe("llama-3.2-1b", micro_batch_size=1, seq=1024, checkpointing="every")
    lora = Recipe("tinyllama-1.1b", micro_batch_size=4, seq=1024, lora_rank=16)
    large = Recipe("llama-3.1-8b", micro_batch_size=1, seq=1024, lora_rank=16, lora_targets=_ALL_LINEAR)
    return [
        llama,
        replace(llama, micro_batch_size=4),
        replace(llama, optimizer_impl="fused"),
        replace(llama, checkpointing="none"),
        lora,
        replace(lora, checkpointing="every"),
        replace(lora, lora_targets=_ALL_LINEAR),
        replace(lora, precision="bf16-amp"),
        replace(large, model="llama-3.2-3b"),
        replace(large, model="qwen2.5-7b", checkpointing="every"),
        large,
        replace(large, checkpointing="every", micro_batch_size=4),
    ]


def measure(claims: Claims, device: torch.device) -> None:
    """Hold each recipe against its plan."""
    hold(claims, _recipes(device), device)
