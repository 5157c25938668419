"""What a line says of LoRA: the rank and the places of adapters, and the weights that are not trained."""

from typing import Any, Protocol

from ..config import RecipeError
from ..layout.layout import places
from .habits import Habits


class Reader(Protocol):
    """Reads a value of a line by its name, and notes the default where the line does not say it."""

    def __call__(self, name: str, default: Any = None, *, note: bool = True) -> Any:
        """Return the value, or the default."""


def adapters_of(read: Reader, habits: Habits, precision: str) -> dict[str, Any]:
    """Return the arguments of a `Layout` that are about adapters; {} where the whole model is trained.

    Raises:
        RecipeError: a value is of no use.
    """
    rank = read("lora_rank", 0, note=False)
    if isinstance(rank, bool) or not isinstance(rank, int | float) or not 0 <= rank < 1e6 or rank != int(rank):
        raise RecipeError(f"lora_rank is {rank!r}; it must be a whole number of at least 0.")
    if not rank:
        return {}
    dropout = read("lora_dropout", habits.lora_dropout)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise RecipeError(f"lora_dropout is {dropout!r}; it must be at least 0 and less than 1.")
    return {
        "lora_rank": int(rank),
        "lora_targets": places(read("lora_targets", habits.lora_targets)),
        "lora_dropout": float(dropout),
        "fp8_params": bool(read("fp8_params", precision == "fp8")),
    }
