"""What the planner knows by name: shapes of models, and GPUs.

A model is a Hugging Face config without weights, or one of the course's own. Sizes are those of the published
`config.json` files. Any other model comes in by the path of its own `config.json`.
"""

import copy
import difflib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...core.models import SmallCNN, SmallGPT, ViT
from ..recipe import Recipe, RecipeError

# -- models


def _llama(**sizes: Any) -> tuple[str, dict[str, Any]]:
    return "llama", {"max_position_embeddings": 4096, "tie_word_embeddings": False, **sizes}


def _qwen(width: int, inner: int, layers: int, heads: int, kv: int, tied: bool) -> tuple[str, dict[str, Any]]:
    vocabulary = 151936 if inner != 18944 else 152064
    return "qwen2", {
        "vocab_size": vocabulary, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "max_position_embeddings": 32768,
        "tie_word_embeddings": tied,
    }  # fmt: skip


def _shape(width: int, inner: int, layers: int, heads: int, kv: int) -> dict[str, int]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
    }


def _gpt2(width: int, layers: int, heads: int) -> tuple[str, dict[str, Any]]:
    return "gpt2", {"n_embd": width, "n_layer": layers, "n_head": heads}


def _vit(width: int, inner: int, layers: int, heads: int, patch: int) -> Callable[[int], nn.Module]:
    sizes = {"patch": patch, "layers": layers, "width": width, "heads": heads, "inner": inner}
    return lambda side: ViT(side or 224, channels=3, classes=1000, **sizes)


_V3 = {"vocab_size": 128256, "max_position_embeddings": 131072}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2-7b": _llama(vocab_size=32000, **_shape(4096, 11008, 32, 32, 32)),
    "llama-2-13b": _llama(vocab_size=32000, **_shape(5120, 13824, 40, 40, 40)),
    "llama-2-70b": _llama(vocab_size=32000, **_shape(8192, 28672, 80, 64, 8)),
    "llama-3.1-8b": _llama(**_V3, **_shape(4096, 14336, 32, 32, 8)),
    "llama-3.1-70b": _llama(**_V3, **_shape(8192, 28672, 80, 64, 8)),
    "llama-3.2-1b": _llama(**_V3, **_shape(2048, 8192, 16, 32, 8), head_dim=64, tie_word_embeddings=True),
    "llama-3.2-3b": _llama(**_V3, **_shape(3072, 8192, 28, 24, 8), head_dim=128, tie_word_embeddings=True),
    "tinyllama-1.1b": _llama(vocab_size=32000, **_shape(2048, 5632, 22, 32, 4)),
    "mistral-7b": (
        "mistral",
        {
            "vocab_size": 32000,
            **_shape(4096, 14336, 32, 32, 8),
            "max_position_embeddings": 32768,
            "sliding_window": None,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2.5-0.5b": _qwen(896, 4864, 24, 14, 2, tied=True),
    "qwen2.5-1.5b": _qwen(1536, 8960, 28, 12, 2, tied=True),
    "qwen2.5-3b": _qwen(2048, 11008, 36, 16, 2, tied=True),
    "qwen2.5-7b": _qwen(3584, 18944, 28, 28, 4, tied=False),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "bert-base": ("bert", {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}),
    "bert-large": (
        "bert",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
    ),
    "resnet-50": ("resnet", {"num_labels": 1000}),
}
# Built without transformers, from the side of the image: the course's own, and torchvision's sizes of the ViT.
IMAGE_MODELS: dict[str, Callable[[int], nn.Module]] = {
    "small-cnn": lambda side: SmallCNN(),
    "small-vit": lambda side: ViT(side or 16),
    "vit-b-16": _vit(768, 3072, 12, 12, 16),
    "vit-l-16": _vit(1024, 4096, 24, 16, 16),
    "vit-h-14": _vit(1280, 5120, 32, 16, 14),
}
SMALL_CONTEXT = 512  # of the course's GPT


@dataclass(frozen=True)
class ModelSpec:
    """A model of the catalog, ready to be built.

    Attributes:
        config: its Hugging Face config; None for those built without.
        kind: "CausalLM", "MaskedLM" or "ImageClassification", as in the names of the Auto classes.
        side, channels: what images it is made for; 0 when it reads text.
        context: longest sequence; 0 when it looks at images.
        patch: pixels a side of what it cuts images into; sides must be multiples of it.
    """

    name: str
    config: Any
    kind: str
    side: int = 0
    channels: int = 0
    context: int = 0
    patch: int = 1

    @property
    def images(self) -> bool:
        """Whether it takes images; else tokens."""
        return self.kind == "ImageClassification"

    def build(self, recipe: Recipe, dtype: torch.dtype) -> nn.Module:
        """Build the model on the meta device: shapes, no memory."""
        with torch.device("meta"):
            if self.config is None:
                make = IMAGE_MODELS.get(self.name)
                return (make(recipe.image_size) if make else SmallGPT(context=SMALL_CONTEXT)).to(dtype)
            import transformers

            family = getattr(transformers, f"AutoModelFor{self.kind}")
            config = copy.deepcopy(self.config)  # `from_config` writes into it
            if recipe.image_size and hasattr(config, "image_size"):
                config.image_size = recipe.image_size
            try:
                model = family.from_config(config, dtype=dtype, attn_implementation=recipe.attention)
            except ValueError as error:
                if "attention implementation" not in str(error):
                    raise  # else: it has no attention, or one way only
                config = copy.deepcopy(self.config)
                model = family.from_config(config, dtype=dtype, attn_implementation="eager")
            model.tie_weights()
            return model


def _kind(config: Any, model_type: str) -> str:
    """Return the kind of model that `config` describes: "ImageClassification", "MaskedLM" or "CausalLM"."""
    from transformers.models.auto import modeling_auto

    architecture = (getattr(config, "architectures", None) or [""])[0]
    known = {
        "ImageClassification": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        "MaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "CausalLM": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    for kind, names in known.items():
        if architecture and architecture in (names.get(model_type) or ""):
            return kind
    for kind, names in known.items():
        if model_type in names:
            return kind
    raise RecipeError(f"A config of type {model_type!r} is none of: {', '.join(known)}.")


def _side(size: Any) -> int:
    """Return the length of a side, which some configs give as [height, width]."""
    return int(max(size)) if isinstance(size, list | tuple) else int(size)


def model_names() -> list[str]:
    """Return the names of all models of the catalog."""
    return [*MODELS, *IMAGE_MODELS, "small-gpt"]


def find_model(name: str) -> ModelSpec:
    """Return the model called `name`, or described by the config file of that path.

    Raises:
        RecipeError: there is no such model, or the file is not a config that can be used.
    """
    if name == "small-gpt":
        return ModelSpec(name, None, "CausalLM", context=SMALL_CONTEXT)
    if name in IMAGE_MODELS:
        small = name.startswith("small")
        patch = {"small-cnn": 4, "small-vit": 4, "vit-h-14": 14}.get(name, 16)
        side, channels = (16, 1) if small else (224, 3)
        return ModelSpec(name, None, "ImageClassification", side=side, channels=channels, patch=patch)
    if name in MODELS:
        model_type, sizes = MODELS[name]
    else:
        path = Path(name)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            near = difflib.get_close_matches(name, model_names(), 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise RecipeError(f"There is no model {name!r} and no such file: {hint}--list shows all models.")
        try:
            sizes = json.loads(path.read_text(encoding="utf-8"))
            model_type = sizes.pop("model_type")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise RecipeError(f"{path} is not a Hugging Face config: a JSON object with a model_type.") from None
        sizes.pop("quantization_config", None)  # the recipe says how weights are kept
    from transformers import CONFIG_MAPPING, AutoConfig

    if model_type not in CONFIG_MAPPING:
        raise RecipeError(f"transformers knows no model type {model_type!r}.")
    try:
        config = AutoConfig.for_model(model_type, **sizes)
    except Exception as error:  # whatever a config class makes of wrong values
        raise RecipeError(f"{name}: {' '.join(str(error).split())[:200]}") from None
    for part in (config, config.get_text_config()):  # a model that also sees keeps what it reads in a config of its own
        part.use_cache = False
        if any(getattr(part, name, 0) for name in ("num_experts", "num_local_experts", "n_routed_experts")):
            raise RecipeError(f"{name} is a mixture of experts; the planner does not simulate these.")
    kind = _kind(config, model_type)
    if kind == "ImageClassification":
        side, patch = _side(getattr(config, "image_size", None) or 224), _side(getattr(config, "patch_size", None) or 1)
        return ModelSpec(name, config, kind, side=side, channels=getattr(config, "num_channels", 3), patch=patch)
    return ModelSpec(name, config, kind, context=getattr(config, "max_position_embeddings", 0) or sys.maxsize)


def count_parameters(name: str) -> int:
    """Return the number of parameters of the model called `name`; shared ones count once.

    Raises:
        RecipeError: there is no such model.
    """
    model = find_model(name).build(Recipe(name), torch.float32)
    return sum(parameter.numel() for parameter in model.parameters())


# -- GPUs


def check_model(recipe: Recipe, subject: ModelSpec) -> None:
    """Compare what only the model can tell about a recipe.

    Raises:
        RecipeError: an option that this model has no use for.
    """
    if not subject.images and recipe.image_size:
        raise RecipeError(f"{subject.name} reads text: leave image_size out.")
    if subject.images and recipe.image_size % subject.patch:
        raise RecipeError(f"{subject.name} takes images whose side is a multiple of {subject.patch} pixels.")
    if not subject.images and recipe.seq > subject.context:
        raise RecipeError(f"{subject.name} takes at most {subject.context} tokens; seq is {recipe.seq}.")
    if subject.config is None and recipe.attention == "eager":
        raise RecipeError(f"{subject.name} has no eager attention: use attention sdpa.")
    if subject.config is None and recipe.lora_rank and not recipe.lora_targets:
        raise RecipeError(f"{subject.name} has no usual LoRA layers: name them in lora_targets.")
