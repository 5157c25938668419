"""Rotary embeddings: the base of a model's rotations and how far Llama 3.1 stretches them.

No byte and no second of a plan depends on them, but an exported configuration trains another model without them. The
values are those of the `config.json` of each model on Hugging Face, in the repository that the catalog names.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..config import RecipeError
from .configs import CONFIGS
from .hub import catalog_or_path
from .models import read_config

# The rest of Llama 3.1's scaling, which Megatron Core has built in.
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class Rotation(NamedTuple):
    """The base of a model's rotations, and the factor of Llama 3.1's scaling; 0 where there is none."""

    base: int
    factor: float = 0.0


_ROTATIONS = {  # by how a name of the catalog begins
    "llama-2-": Rotation(10_000),
    "llama-3-": Rotation(500_000),
    "llama-3.1-": Rotation(500_000, 8.0),
    "llama-3.2-": Rotation(500_000, 32.0),
    "llama-3.3-70b": Rotation(500_000, 8.0),
    "tinyllama-": Rotation(10_000),
    "mixtral-": Rotation(1_000_000),
    "qwen2.5-": Rotation(1_000_000),
    "qwen3-": Rotation(1_000_000),
}


def rotation_of(model: str) -> Rotation | None:
    """Return the rotations of a model of the catalog, or of the config at a path; None if they are not known."""
    name = catalog_or_path(model)
    if name in CONFIGS or name in _ROTATIONS:
        return next((known for start, known in _ROTATIONS.items() if name.startswith(start)), None)
    try:
        _, sizes = read_config(name)
    except RecipeError:
        return None
    return _of_config(sizes)


def _of_config(sizes: Mapping[str, Any]) -> Rotation | None:
    told = sizes.get("rope_parameters") or sizes.get("rope_scaling") or {}
    if not isinstance(told, Mapping):
        return None
    base = told.get("rope_theta", sizes.get("rope_theta"))
    kind = told.get("rope_type", told.get("type", "default"))
    if not isinstance(base, int | float) or kind not in ("default", "llama3"):
        return None
    if kind == "default":
        return Rotation(int(base))
    if any(told.get(name, value) != value for name, value in _LLAMA_3.items()):
        return None
    return Rotation(int(base), float(told.get("factor", 8.0)))
