"""What a line says of how megatron's ranks bring tokens to experts."""

from typing import Any

from ..config import RecipeError
from .adapters import Reader

_DISPATCHERS = {"alltoall": "all-to-all", "allgather": "all-gather"}  # as Megatron calls them


def dispatch_of(read: Reader) -> dict[str, Any]:
    """Return the arguments of a `Layout` that are about the way to experts; {} where the line says nothing of it.

    Raises:
        RecipeError: a value is of no use.
    """
    said = str(read("dispatcher", "alltoall", note=False))
    split = read("expert_tensor", 1, note=False)
    if said not in _DISPATCHERS:
        raise RecipeError(f"dispatcher is {said!r}; choose one of {', '.join(_DISPATCHERS)}.")
    if isinstance(split, bool) or not isinstance(split, int | float) or split != int(split):
        raise RecipeError(f"expert_tensor is {split!r}; it must be a whole number of at least 1.")
    return {
        "dispatcher": _DISPATCHERS[said],
        "expert_tensor": int(split),
        "grouped_experts": bool(read("grouped_experts", False, note=False)),
    }
