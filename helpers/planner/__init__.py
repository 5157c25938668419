"""The planner: how much memory a training recipe needs, before anyone rents a GPU."""

from .allocator import CachingAllocator, OutOfMemory
from .catalog import count_parameters, find_gpu
from .recipe import Recipe, RecipeError
from .report import Plan, plan, plan_many

__all__ = [
    "CachingAllocator",
    "OutOfMemory",
    "Plan",
    "Recipe",
    "RecipeError",
    "count_parameters",
    "find_gpu",
    "plan",
    "plan_many",
]
