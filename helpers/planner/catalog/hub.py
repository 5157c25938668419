"""Models of huggingface.co beyond `CONFIGS`, and all models of the catalog under the names that people type.

`hub.json` has a line for each: its repository, its published number of parameters (where known), other names, and
what its `config.json` says that differs from transformers' defaults. It is read as its config file would be.
"""

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from .configs import CONFIGS, EXPERTS

FILE = Path(__file__).with_name("hub.json")
_ALIKE = re.compile(r"^qwen2(\.5)?(-coder|-math)?-")  # of equal sizes, where they have a size in common
_ENDINGS = re.compile(  # fine-tuned or quantized copies of the same sizes
    r"-(hf|base|instruct|chat|it|pt|bnb|unsloth|4bit|8bit|int4|int8|fp16|bf16|fp8|gptq|awq|uncased|\d{4}|v\d+(\.\d+)*)$"
)


@dataclass(frozen=True)
class HubModel:
    """A model that is published on huggingface.co.

    Attributes:
        source: its repository.
        config: its config, with the `model_type`.
        parameters: as published on its page; None where no count is known.
        also: other names of it, or of models of equal sizes.
    """

    source: str
    config: dict[str, Any]
    parameters: int | None = None
    also: list[str] = field(default_factory=list)

    @property
    def mixture(self) -> bool:
        """Whether it is a mixture of experts."""
        return any(name in self.config for name in EXPERTS)


@cache
def hub_models() -> dict[str, HubModel]:
    """Return the models of the file, by name."""
    return {name: HubModel(**model) for name, model in json.loads(FILE.read_text(encoding="utf-8")).items()}


@cache
def _names() -> dict[str, str]:
    """Return the catalog's name of each model by each of its names, in the form of `_plain`."""
    names: dict[str, str] = {}
    known = [(name, config.source, ()) for name, config in CONFIGS.items()]
    known += [(name, model.source, model.also) for name, model in hub_models().items()]
    for name, source, also in known:
        for each in (name, *also, source.rpartition("/")[2]):
            names.setdefault(_plain(each), name)
    return names


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower().removeprefix("meta-"))


def known_name(typed: str) -> str:
    """Return the catalog's name of a model, given a name or a repository on huggingface.co; "" if it is unknown.

    A copy that was fine-tuned or quantized in 4 bits has the sizes of the model whose name it bears.
    """
    if typed in CONFIGS or typed in hub_models():
        return typed
    if typed.count("/") > 1 or typed.startswith((".", "/", "~")):
        return ""  # a path
    name = typed.rpartition("/")[2].lower().replace("_", "-").removesuffix(".json")
    while True:
        if known := _names().get(_plain(name)) or _names().get(_plain(_ALIKE.sub("qwen2.5-", name))):
            return known
        shorter = _ENDINGS.sub("", name)
        if shorter == name:
            return ""
        name = shorter


def catalog_or_path(typed: str) -> str:
    """Return the catalog's name of a model, or what was typed where it is a path or no such name is known."""
    return typed if Path(typed).exists() else known_name(typed) or typed
