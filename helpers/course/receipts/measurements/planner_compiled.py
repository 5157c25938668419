"""A compiled model's peak against the plan, which knows no compiler: how far below it a compiled step stays."""

from dataclasses import replace

import torch

from ....claims.claims import Claims
from ....core.compiler import why_no_compiler
from ....planner import Recipe, plan
from ....planner.measure import measure_recipe
from ..steps import Skip


def _recipes(device: torch.device) -> list[Recipe]:
    """Return a GPT in two precisions and an image model, on a GPU; on a CPU the course's GPT."""
    if device.type != "cuda":
        return [Recipe("small-gpt", precision="fp32", micro_batch_size=8, seq=256)]
    gpt = Recipe("gpt2", precision="bf16-amp", micro_batch_size=4, seq=1024)
    return [gpt, replace(gpt, precision="bf16"), Recipe("vit-b-16", precision="bf16-amp", micro_batch_size=64)]


def measure(claims: Claims, device: torch.device) -> None:
    """Record compiled / planned peak; nobody has claimed anything about it."""
    if why_no_compiler():
        raise Skip(why_no_compiler())
    for recipe in _recipes(device):
        ratio = measure_recipe(replace(recipe, compile=True), device).peak_bytes / plan(recipe).peak_allocated_bytes
        claims.figure("compiled, peak against the plan of the step as written", recipe.summary, ratio, "x")
