"""Models of the Hub by the catalog's names."""

import re

from ..catalog.configs import CONFIGS
from ..catalog.hub import hub_models, known_name
from ..catalog.models import model_names

_ENDINGS = re.compile(r"-(hf|base|instruct|chat|it|bnb-4bit|fp16|bf16|fp8|\d{4}|v\d+(\.\d+)*)$")
_ALIKE = {f"qwen2-{size}": f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "7b", "72b")}  # of equal sizes


def catalog_name(model: str) -> str:
    """Return the catalog's name of a model of the Hub, or of its folder; empty if it has none."""
    name = model.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    while (shorter := _ENDINGS.sub("", name)) != name:
        name = shorter
    if name.startswith("tinyllama"):
        name = "tinyllama-1.1b"
    name = _ALIKE.get(name, name)
    return name if name in model_names() or name in CONFIGS else known_name(model)


def layers_of(name: str) -> int:
    """Return how many blocks a model of the catalog has; 0 where its config does not count them by that name."""
    sizes = CONFIGS[name].sizes if name in CONFIGS else hub_models()[name].config if name in hub_models() else {}
    return int(sizes.get("num_hidden_layers", 0))
