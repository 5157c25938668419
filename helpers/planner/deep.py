"""Plan a deep model from two shallow copies of it.

The layers of a language model are alike, so what a training step needs grows by the same amount with each of them. Two
plans of a few layers give that amount, and the line through them the whole model, in a fraction of the time.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from .catalog import find_model
from .recipe import Recipe, RecipeError
from .report import Plan, plan_many

SHORT = (3, 6)  # layers; with fewer, embedding and head make the peak


@dataclass(frozen=True)
class DeepPlan:
    """What a recipe will need, on one GPU.

    Attributes:
        allocated_bytes: the peak.
        reserved_bytes: what the allocator may reserve for it, at the upper end.
        at_least_seconds: a step cannot take less on each GPU of the catalog.
    """

    recipe: Recipe
    allocated_bytes: int
    reserved_bytes: int
    at_least_seconds: dict[str, float]


def plan_deep(recipes: Sequence[Recipe], progress: bool = False) -> list[DeepPlan]:
    """Plan each of `recipes`, all for Hugging Face models of the catalog, from copies of 3 and of 6 layers.

    Raises:
        RecipeError: a model that has no number of layers to change.
    """
    depths, shallow = [], []
    with tempfile.TemporaryDirectory() as folder:
        for recipe in recipes:
            config = find_model(recipe.model).config
            shape = config.to_dict() if config is not None else {}
            if "num_hidden_layers" not in shape:
                raise RecipeError(f"{recipe.model} has no num_hidden_layers: plan it as it is.")
            depths.append(shape["num_hidden_layers"])
            for layers in SHORT:
                path = Path(folder) / f"{recipe.model}-{layers}.json"
                path.write_text(json.dumps(shape | {"num_hidden_layers": layers, "layer_types": None}))
                shallow.append(replace(recipe, model=str(path)))
        plans = plan_many(shallow, progress=progress)
    return [_line(*each) for each in zip(recipes, depths, plans[::2], plans[1::2], strict=True)]


def _line(recipe: Recipe, depth: int, few: Plan, more: Plan) -> DeepPlan:
    def at_depth(a: float, b: float) -> float:
        return a + (b - a) / (SHORT[1] - SHORT[0]) * (depth - SHORT[0])

    allocated = at_depth(few.peak_allocated_bytes, more.peak_allocated_bytes)
    spread = more.reserved_bytes[1] / more.peak_allocated_bytes
    seconds = {gpu: at_depth(s, more.at_least_seconds[gpu]) for gpu, s in few.at_least_seconds.items()}
    return DeepPlan(recipe, int(allocated), int(allocated * spread), seconds)
