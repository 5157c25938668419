"""The planner's peak against the peak of two real steps: convolutions, vision transformers, and an encoder of text."""

import torch

from ....claims.claims import Claims
from ....planner import Recipe
from ._honesty import hold


def _recipes(device: torch.device) -> list[Recipe]:
    """Return models of the size that people train, on a GPU; on a CPU the course's own.

    The ViT's attention keeps one more copy of its output there than with CUDA's kernel.
    """
    if device.type != "cuda":
        return [Recipe(name, precision="fp32", micro_batch_size=64) for name in ("small-cnn", "small-vit")]
    return [
        Recipe("small-cnn", precision="fp32", micro_batch_size=4096),
        Recipe("resnet-50", precision="fp32", micro_batch_size=32),
        Recipe("resnet-50", precision="bf16-amp", micro_batch_size=32),
        Recipe("resnet-50", precision="bf16-amp", micro_batch_size=64, optimizer="sgd-momentum"),
        Recipe("vit-b-16", precision="bf16-amp", micro_batch_size=64, optimizer_impl="fused"),
        Recipe("vit-l-16", precision="fp32", micro_batch_size=16),
        Recipe("vit-l-16", precision="fp16-amp", micro_batch_size=16),
        Recipe("bert-base", precision="bf16-amp", micro_batch_size=16, seq=512),
    ]


def measure(claims: Claims, device: torch.device) -> None:
    """Hold each recipe against its plan."""
    hold(claims, _recipes(device), device)
