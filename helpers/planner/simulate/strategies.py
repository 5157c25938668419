"""Which data-parallel strategy a recipe asks for."""

from ..config import TrainingConfig
from .fsdp import FullyShard
from .strategy import Strategy
from .zero import Zero1, Zero2


def strategy_of(recipe: TrainingConfig) -> Strategy:
    """Return the strategy of `recipe`. To offload everything takes `fully_shard`, even on one rank."""
    if recipe.offload == "all":
        return FullyShard(recipe)
    return {"none": Strategy, "zero1": Zero1, "zero2": Zero2, "zero3": FullyShard}[recipe.shard](recipe)
