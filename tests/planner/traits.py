"""Fit how much longer operations take that have a trait of `helpers/meter/roofline/traits.py`.

A padded vocabulary changes nothing but the matmuls of the head, so the difference is theirs. Of a step on images the
seconds of each trait are what is measured, less what the other operations are forecast to take; each trait takes the
median of the models that have it. Steps on images come from one source and one GPU.
"""

import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from helpers.meter.roofline.traits import trait_of
from helpers.planner import Recipe
from helpers.planner.catalog.gpus import find_gpu
from helpers.planner.catalog.rooflines import Rates, roofline_of
from helpers.planner.simulate import Simulation, simulate

# In this order: a step in channels-last format has convolutions of two traits.
ORDER = ("channels last", "depthwise", "depthwise channels last")


def factors(rates: Rates, speeds: Mapping[str, Any]) -> dict[str, float]:
    """Return the factor of each trait, by what was published and the other rates."""
    result = {"unaligned": statistics.geometric_mean(_head_factor(each, rates) for each in speeds["padded"])}
    for trait in ORDER:
        found = [_factor(trait, each, replace(rates, factors=result)) for each in speeds["images"]]
        result[trait] = statistics.median(factor for factor in found if factor is not None)
    return result


def _head_factor(pair: Mapping[str, Any], rates: Rates) -> float:
    """Return how much longer the three matmuls of a head take whose vocabulary is not padded."""
    flops = 3 * 2 * pair["rows"] * pair["vocabulary"] * pair["width"]
    return 1 + (pair["seconds"] - pair["padded_seconds"]) / (
        flops / (rates.step * rates.products[pair["gpu"]]["bfloat16"])
    )


def _factor(trait: str, image_step: Mapping[str, Any], rates: Rates) -> float | None:
    """Return a trait's factor by one step; None if another trait that is yet unknown, or not this one, is in it."""
    chip = replace(roofline_of(find_gpu(image_step["gpu"]), rates), launch=0.0)
    parts: Counter[str | None] = Counter()
    for step in _simulation(json.dumps(image_step)).works:
        name = trait_of(step.work)
        parts[name if name not in rates.factors else None] += step.times * chip.seconds(step.work)[0]
    if {name for name in parts if name} != {trait}:
        return None
    return (image_step["seconds"] - parts[None]) / parts[trait]


@cache
def _simulation(image_step: str) -> Simulation:
    given = json.loads(image_step)
    with tempfile.TemporaryDirectory() as folder:
        model = given["model"]
        if isinstance(model, dict):
            path = Path(folder, "config.json")
            path.write_text(json.dumps(model), encoding="utf-8")
            model = str(path)
        recipe = Recipe(
            model=model,
            micro_batch_size=given["micro_batch_size"],
            precision="fp16-amp",
            optimizer="sgd-momentum",
            channels_last=given["channels_last"],
        )
        return simulate(recipe)
