"""The old name of a training config, for one release: `Recipe` is `TrainingConfig`."""

from .config import RecipeError, TrainingConfig

Recipe = TrainingConfig

__all__ = ["Recipe", "RecipeError"]
