"""Models of the Hub by the catalog's names."""

import re

from ..catalog.models import model_names

_ENDINGS = re.compile(r"-(hf|base|instruct|chat|it|bnb-4bit|v\d+(\.\d+)*)$")


def catalog_name(model: str) -> str:
    """Return the catalog's name of a model of the Hub, or of its folder; empty if it has none."""
    name = model.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    while (shorter := _ENDINGS.sub("", name)) != name:
        name = shorter
    if name.startswith("tinyllama"):
        name = "tinyllama-1.1b"
    return name if name in model_names() else ""
