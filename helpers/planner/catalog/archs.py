"""The sizes of language models, for layouts: those of the catalog, and of anybody's config file.

A layout runs a decoder of its own, of attention and perceptrons or experts. So a config that comes as a file is held
against the model that transformers builds of it: if a few of its blocks have another number of parameters, they are
made of other things, and the plan would be wrong.
"""

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ..config import RecipeError
from ..layout.arch import Arch, arch_of_config
from .configs import CONFIGS, ENCODERS
from .models import kind_of, make_config, model_names, read_config

OFF = 0.05  # by which parameters may differ: biases and norms of small models


def arch_names() -> list[str]:
    """Return the names of all models of the catalog that a layout can train."""
    return [name for name, config in CONFIGS.items() if config.model_type not in ENCODERS]


def arch_of(name: str) -> Arch:
    """Return the sizes of the model called `name`, or described by the config file of that path.

    Raises:
        RecipeError: there is no such model, it is no causal language model, or not of the parts that layouts know.
    """
    if name in model_names() and name not in CONFIGS:
        raise RecipeError(f"{name} is not a causal language model of a published size, and layouts are only for those.")
    if name in CONFIGS:
        return _published(name)
    model_type, sizes = read_config(name)
    from transformers import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:  # what it says of itself will have to do
        return arch_of_config(
            name, SimpleNamespace(**sizes | sizes.get("text_config", {}) | {"model_type": model_type})
        )
    config = make_config(name, model_type, sizes)
    if kind_of(name, config, model_type)[0] != "CausalLM":
        raise RecipeError(f"{name} is not a causal language model, and layouts are only for those.")
    arch = arch_of_config(name, config.get_text_config())
    _compare(name, arch, config.get_text_config())
    return arch


def _published(name: str) -> Arch:
    """Return the sizes of a model of the catalog, which states all that matters: transformers takes seconds to load."""
    known = CONFIGS[name]
    if known.model_type in ENCODERS:
        raise RecipeError(f"{name} is not a causal language model, and layouts are only for those.")
    return arch_of_config(name, SimpleNamespace(**known.sizes, model_type=known.model_type))


def _compare(name: str, arch: Arch, config: Any) -> None:
    """Make sure that a few blocks, the embedding and the head have as many parameters as transformers gives them."""
    import torch
    from transformers import AutoModelForCausalLM

    few = copy.deepcopy(config)
    few.num_hidden_layers = min(arch.layers, arch.dense_layers + 2)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(few)
            model.tie_weights()
    except Exception as error:  # model classes raise anything on wrong values
        raise RecipeError(f"{name} cannot be built: {' '.join(str(error).split())[:200]}") from None
    theirs = sum(parameter.numel() for parameter in model.parameters())
    ours = replace(arch, layers=few.num_hidden_layers).count() + arch.positions * arch.hidden
    if abs(ours / theirs - 1) > OFF:
        raise RecipeError(
            f"{name}: {few.num_hidden_layers} blocks of a {config.model_type} have {theirs / 1e6:,.1f}M parameters, "
            f"and the decoder of layouts {ours / 1e6:,.1f}M: they are made of other parts."
        )
