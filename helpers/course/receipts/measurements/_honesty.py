"""A plan held against the two real steps that it foretells."""

import math
from collections.abc import Sequence

import torch

from ....claims.claims import Claims
from ....planner import Recipe, plan_many
from ....planner.measure import measure_recipe
from ._subjects import free_bytes

SAID = "measured / predicted peak"
TOLERANCE = 0.03


def hold(claims: Claims, recipes: Sequence[Recipe], device: torch.device) -> None:
    """Record measured / predicted peak of each recipe; on CUDA, also whether the reserved interval holds.

    What does not fit the GPU's free memory is recorded as not measured. What should fit and does not counts as
    infinitely far off.
    """
    for recipe, plan in zip(recipes, plan_many(recipes), strict=True):
        words = recipe.summary
        if plan.peak_allocated_bytes > free_bytes(device):
            claims.not_measured("planner", SAID, f"{words}: needs {plan.peak_allocated_bytes / 2**30:.0f} GiB")
            continue
        try:
            measured = measure_recipe(recipe, device)
        except torch.OutOfMemoryError:
            claims.record("planner", SAID, words, math.inf, "", 1 - TOLERANCE, 1 + TOLERANCE)
            continue
        ratio = measured.peak_bytes / plan.peak_allocated_bytes
        claims.record("planner", SAID, words, ratio, "", 1 - TOLERANCE, 1 + TOLERANCE)
        if measured.reserved_bytes is not None:
            low, high = (n / 2**30 for n in plan.reserved_bytes)
            reserved = measured.reserved_bytes / 2**30
            claims.record("planner", "reserved lies where predicted", words, reserved, "GiB", low, high)
