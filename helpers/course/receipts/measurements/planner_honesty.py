"""The planner's peak against the peak of two real steps: a GPT in all the ways of training it."""

from dataclasses import replace

import torch

from ....claims.claims import Claims
from ....planner import Recipe
from ._honesty import hold

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
_ON_CUDA = (
    {"precision": "fp32"},
    {"precision": "fp32", "checkpointing": "every-2"},
    {"precision": "fp16-amp"},
    {"precision": "bf16-amp", "checkpointing": "every"},
    {"attention": "eager"},
)


def _recipes(device: torch.device) -> list[Recipe]:
    """Return GPT-2's recipes, on a GPU; on a CPU those of the course's GPT, whose kernels keep there what CUDA's do."""
    if device.type == "cuda":
        gpt = Recipe("gpt2", micro_batch_size=4, seq=1024)
        return [replace(gpt, **change) for change in (*_CHANGES, *_ON_CUDA)]
    sizes = ((16, 128), (4, 512))  # (batch, sequence)
    gpts = (Recipe("small-gpt", precision="fp32", micro_batch_size=batch, seq=seq) for batch, seq in sizes)
    return [replace(gpt, **change) for gpt in gpts for change in _CHANGES]


def measure(claims: Claims, device: torch.device) -> None:
    """Hold each recipe against its plan."""
    hold(claims, _recipes(device), device)
