"""The planner's peak against the peak of two real steps, for twenty recipes and more."""

from dataclasses import replace

import torch

from ....claims.claims import Claims
from ....planner import Recipe, plan_many
from ....planner.measure import measure_recipe

_CHANGES = (
    {},
    {"micro_batch_size": 2},
    {"optimizer": "sgd"},
    {"optimizer": "sgd-momentum"},
    {"optimizer": "adamw", "optimizer_impl": "fused"},
    {"optimizer_impl": "for-loop"},
    {"optimizer": "adafactor"},
    {"gradient_accumulation_steps": 4},
    {"step_in_backward": True, "optimizer_impl": "for-loop"},
    {"checkpointing": "every"},
    {"checkpointing": "sqrt"},
    {"precision": "bf16-amp"},
)
_TOLERANCE = 0.03


def _recipes(device: torch.device) -> list[Recipe]:
    """Return models that people train, on a GPU; on a CPU the course's GPT, whose kernels there keep what CUDA's keep.

    The ViT's do not: with CUDA's kernel `nn.MultiheadAttention` keeps one more copy of each attention's output.
    """
    if device.type != "cuda":
        short, long = (Recipe("small-gpt", precision="fp32", micro_batch_size=64 // n, seq=32 * n) for n in (4, 16))
        vit = Recipe("small-vit", precision="fp32", micro_batch_size=64)
        return [*(replace(gpt, **change) for gpt in (short, long) for change in _CHANGES), vit]
    gpt = Recipe("gpt2", micro_batch_size=4, seq=1024)
    llama = Recipe("llama-3.2-1b", micro_batch_size=1, seq=1024, checkpointing="every")
    lora = Recipe("tinyllama-1.1b", micro_batch_size=4, seq=1024, lora_rank=16)
    return [
        *(replace(gpt, **change) for change in _CHANGES),
        *(replace(gpt, precision="fp32", **change) for change in ({}, {"checkpointing": "every-2"})),
        llama,
        replace(llama, micro_batch_size=4),
        replace(llama, optimizer_impl="fused"),
        lora,
        replace(lora, checkpointing="every"),
        replace(lora, lora_targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")),
        Recipe("vit-l-16", precision="fp32", micro_batch_size=16),
        Recipe("vit-l-16", precision="fp16-amp", micro_batch_size=16),
        Recipe("resnet-50", precision="fp32", micro_batch_size=32),
        Recipe("resnet-50", precision="bf16-amp", micro_batch_size=32),
        Recipe("bert-base", precision="bf16-amp", micro_batch_size=16, seq=512),
    ]


def measure(claims: Claims, device: torch.device) -> None:
    """Record measured / predicted peak of each recipe; on CUDA, also whether the reserved interval holds."""
    recipes = _recipes(device)
    for recipe, plan in zip(recipes, plan_many(recipes), strict=True):
        measured = measure_recipe(recipe, device)
        words = recipe.summary
        ratio = measured.peak_bytes / plan.peak_allocated_bytes
        claims.record("planner", "measured / predicted peak", words, ratio, "", 1 - _TOLERANCE, 1 + _TOLERANCE)
        if measured.reserved_bytes is not None:
            low, high = (n / 2**30 for n in plan.reserved_bytes)
            reserved = measured.reserved_bytes / 2**30
            claims.record("planner", "reserved lies where predicted", words, reserved, "GiB", low, high)
