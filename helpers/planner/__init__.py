"""The planner: how much memory a training recipe needs and how long a step takes, before anyone rents a GPU."""

from .allocator import CachingAllocator, OutOfMemory
from .catalog.gpus import find_gpu
from .catalog.models import count_parameters
from .config import ParallelConfig, RecipeError, TrainingConfig
from .plan import Plan, plan, plan_many
from .recipe import Recipe

__all__ = [
    "CachingAllocator",
    "OutOfMemory",
    "ParallelConfig",
    "Plan",
    "Recipe",
    "RecipeError",
    "TrainingConfig",
    "count_parameters",
    "find_gpu",
    "plan",
    "plan_many",
]
