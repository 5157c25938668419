"""Plans made in advance, so that a lab need not wait for them.

A plan of a deep model takes seconds to a minute, and it is the same on every machine. The plans that the labs ask for
are kept in `planned.json`; a recipe that is not there is planned on the spot, so change one and see.

`python -m helpers build` adds plans that a lab asks for and the table does not have. `python -m helpers plans` makes
all of them again, after a change of the planner.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from .config import TrainingConfig
from .forecast import Forecast
from .plan import Plan, plan_many

TABLE = Path(__file__).with_suffix(".json")
KEEP = "TAS_KEEP_PLANS"  # set by the build: new plans go into the table


def planned(recipes: Sequence[TrainingConfig]) -> list[Plan]:
    """Return a plan of each of `recipes`, with the common GPUs of the catalog: kept ones at once, others made now.

    Raises:
        RecipeError: one of the recipes makes no sense.
    """
    kept = _kept()
    missing = [recipe for recipe in dict.fromkeys(recipes) if recipe not in kept]
    if missing:
        kept.update(zip(missing, plan_many(missing, progress=len(missing) > 1), strict=True))
        if KEEP in os.environ:
            _write(kept)
    return [kept[recipe] for recipe in recipes]


def plan_anew() -> None:
    """Make every plan of the table again."""
    recipes = list(_kept())
    _write(dict(zip(recipes, plan_many(recipes, progress=True), strict=True)))


@cache
def _kept() -> dict[TrainingConfig, Plan]:
    """Return the plans of the table; those that are made later join them until the program ends."""
    rows = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else []
    return {plan.recipe: plan for plan in map(_from_json, rows)}


def _from_json(row: dict[str, Any]) -> Plan:
    objects = {
        "recipe": TrainingConfig(**row["recipe"]),
        "reserved_bytes": tuple(row["reserved_bytes"]),
        "peaks": {phase: tuple(peak) for phase, peak in row["peaks"].items()},
        "forecasts": {gpu: Forecast(**values) for gpu, values in row.get("forecasts", {}).items()},
    }
    return Plan(**row | objects)


def _write(plans: dict[TrainingConfig, Plan]) -> None:
    rows = []
    for recipe, plan in sorted(plans.items(), key=lambda item: str(item[0])):
        changed = {
            "recipe": recipe.changed(),
            "seconds": round(plan.seconds, 1),
        }  # fields at their defaults are left out
        rows.append(json.dumps(asdict(plan) | changed))
    TABLE.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8", newline="\n")
    _kept.cache_clear()
