"""Models known by name, ready to be built.

A model is a Hugging Face config without weights, or one of the course's own. Any other model is given by the path of
its own `config.json`.
"""

import copy
import difflib
import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import RecipeError, TrainingConfig
from .configs import CONFIGS, EXPERTS
from .hub import catalog_or_path, hub_models

if TYPE_CHECKING:  # it takes seconds to import, and names and limits need none of it
    import torch
    from torch import nn


def _vit(width: int, inner: int, layers: int, heads: int, patch: int) -> dict[str, int]:
    return {"patch": patch, "layers": layers, "width": width, "heads": heads, "inner": inner}


VITS = {  # in torchvision's sizes: vit_b_16, vit_l_16, vit_h_14
    "vit-b-16": _vit(768, 3072, 12, 12, 16),
    "vit-l-16": _vit(1024, 4096, 24, 16, 16),
    "vit-h-14": _vit(1280, 5120, 32, 16, 14),
}
IMAGE_MODELS = ("small-cnn", "small-vit", *VITS)  # built without transformers
SMALL_CONTEXT = 512  # of the course's GPT


# The kinds of models that are built: as in the names of the Auto classes -> what transformers calls their table.
_TABLES = {
    "ImageTextToText": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "ImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "CausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "Seq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "SpeechSeq2Seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "SequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "TokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "QuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
}
# Types whose layers carry a state along the sequence. CUDA has kernels for that; without these they loop over tokens.
SCANS = ("mamba", "mamba2", "falcon_mamba", "jamba", "rwkv", "recurrent_gemma", "zamba", "zamba2", "bamba", "xlstm")
SCANS += ("falcon_h1", "nemotron_h", "qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid", "kimi_linear")
VISION = ("llava", "paligemma", "gemma3", "internvl")  # others cut images into pieces whose number depends on the image


_DECODERS = ("num_decoder_layers", "decoder_layers")  # how configs of encoder-decoders call the decoder's depth


@dataclass(frozen=True)
class ModelSpec:
    """A model of the catalog, ready to be built.

    Attributes:
        config: its Hugging Face config; None for those built without.
        kind: "CausalLM", "SequenceClassification" and so on, as in the names of the Auto classes.
        side, channels: what images it is made for; 0 when it reads text.
        context: longest sequence; 0 when it looks at images.
        extends: whether its positions are rotations, which go on beyond `context`.
        patch: pixels a side of what it cuts images into; sides must be multiples of it.
        depth: blocks, where they are other than the name says; 0 where they are not.
        called: the class that is built.
    """

    name: str
    config: Any
    kind: str
    side: int = 0
    channels: int = 0
    context: int = 0
    extends: bool = False
    patch: int = 1
    depth: int = 0
    called: str = ""

    @property
    def layers(self) -> int:
        """The number of identical blocks; 0 if the blocks differ, or if the config does not say."""
        if self.config is None:
            return self.depth or VITS.get(self.name, {"layers": 0})["layers"]
        if hasattr(self.config, "depths") or self.config.get_text_config() is not self.config:
            return 0
        return getattr(self.config, "num_hidden_layers", 0)

    @property
    def pair(self) -> bool:
        """Whether it is an encoder and a decoder of as many blocks each."""
        if not getattr(self.config, "is_encoder_decoder", False):
            return False
        depths = [getattr(self.config, name) for name in _DECODERS if hasattr(self.config, name)]
        return bool(depths) and set(depths) == {self.layers}

    def with_layers(self, layers: int) -> "ModelSpec":
        """Return the same model with another number of blocks."""
        config = copy.deepcopy(self.config)
        if config is not None:
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:layers]
            config.num_hidden_layers = layers
            for name in _DECODERS if self.pair else ():
                if hasattr(config, name):
                    setattr(config, name, layers)
        return replace(self, config=config, depth=layers)

    @property
    def mixture(self) -> bool:
        """Whether it is a mixture of experts."""
        parts = () if self.config is None else (self.config, self.config.get_text_config())
        return any(getattr(part, experts, 0) for part in parts for experts in EXPERTS)

    @property
    def images(self) -> bool:
        """Whether it takes images; else tokens."""
        return self.kind == "ImageClassification"

    def build(self, recipe: TrainingConfig, dtype: "torch.dtype") -> "nn.Module":
        """Build the model on the meta device: shapes, no memory."""
        import torch

        with torch.device("meta"):
            if self.config is None:
                return _own_model(self.name, recipe.image_size, self.depth).to(dtype)
            import transformers

            family = getattr(transformers, f"AutoModelFor{self.kind}")
            config = self._config(recipe)
            try:
                model = family.from_config(config, dtype=dtype, attn_implementation=recipe.attention)
            except ValueError as error:
                if "attention implementation" not in str(error):
                    raise  # else: it has no attention, or one way only
                model = family.from_config(self._config(recipe), dtype=dtype, attn_implementation="eager")
            model.tie_weights()
            if config.model_type == "mt5" or not getattr(config, "scale_decoder_outputs", True):
                model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))  # a head of its own
            return model

    def _config(self, recipe: TrainingConfig) -> Any:
        """Return a config of one's own (`from_config` writes into it), with what a training needs and it may lack."""
        config = copy.deepcopy(self.config)
        for part in (config, getattr(config, "vision_config", None)):
            if recipe.image_size and hasattr(part, "image_size"):
                part.image_size = recipe.image_size
        for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop"):
            if getattr(config, name, 0):
                setattr(config, name, 0.0)  # the step with the most memory leaves no layer out
        for part in (config, config.get_text_config()) if recipe.dropout is not None else ():
            for name, value in vars(part).items():
                if isinstance(value, int | float) and ("dropout" in name or name.endswith("pdrop")):
                    setattr(part, name, recipe.dropout)
        if self.kind not in ("CausalLM", "MaskedLM", "ImageClassification"):
            for name in ("pad_token_id", "decoder_start_token_id"):  # padding ends a text, a start begins an answer
                if getattr(config, name, None) is None:
                    setattr(config, name, 0)
        if self.kind == "SequenceClassification" and config.problem_type is None and config.num_labels > 1:
            config.problem_type = "single_label_classification"  # as most find out from the labels; some count these
        return config


def _own_model(name: str, side: int, depth: int) -> "nn.Module":
    """Make a model of the course; for images with `side` pixels a side, and `depth` blocks; 0 for its usual ones."""
    from ...core.models import SmallCNN, SmallGPT, ViT

    if name == "small-gpt":
        return SmallGPT(context=SMALL_CONTEXT)
    if name == "small-cnn":
        return SmallCNN()
    if name not in VITS:
        return ViT(side or 16)
    sizes = VITS[name] | ({"layers": depth} if depth else {})
    return ViT(side or 224, channels=3, classes=1000, **sizes)


def kind_of(name: str, config: Any, model_type: str) -> tuple[str, str]:
    """Return the kind of model that `config` describes, and its class: the one that it names, or its type's usual one.

    Raises:
        RecipeError: it names a class that is not planned, or its type has no class that is.
    """
    from transformers.models.auto import modeling_auto

    classes = {kind: getattr(modeling_auto, table).get(model_type) or () for kind, table in _TABLES.items()}
    known = {kind: [names] if isinstance(names, str) else list(names) for kind, names in classes.items()}
    if model_type != "whisper":  # others hear in other ways
        known["SpeechSeq2Seq"] = []
    if model_type not in VISION:
        known["ImageTextToText"] = []
    named = (getattr(config, "architectures", None) or [""])[0]
    order = list(known)
    if getattr(config, "is_encoder_decoder", False):
        order = ["SpeechSeq2Seq", "Seq2SeqLM", *order]
    for kind in order:
        if named in known[kind] or (not named and known[kind]):
            return kind, named or known[kind][0]
    if model_type not in VISION and named in str(getattr(modeling_auto, _TABLES["ImageTextToText"]).get(model_type)):
        kinds = "the number of an image's tokens depends on its pixels" if named else ""
        planned = f"of this kind, the planner takes {', '.join(VISION)}."
        raise RecipeError(f"{name} is a {named}, which is not planned: {kinds}; {planned}")
    words = f"a {named}" if named else f"of type {model_type!r}"
    raise RecipeError(f"{name} is {words}, which is not planned; a config's class is one of: {', '.join(known)}.")


def _side(size: Any) -> int:
    """Return the length of a side, which some configs give as [height, width]."""
    return int(max(size)) if isinstance(size, list | tuple) else int(size)


def model_names() -> list[str]:
    """Return the names of all models of the catalog that a recipe can train."""
    return [*(name for name, config in CONFIGS.items() if not config.mixture), *IMAGE_MODELS, "small-gpt"]


def limits(name: str) -> tuple[int, int]:
    """Return (longest sequence, pixels a side of an image) of a model of the catalog; 0 where it takes none.

    What `find_model` says, too, but that needs transformers.
    """
    known = CONFIGS.get(name) or find_model(name)
    return known.context, known.side


def find_model(name: str) -> ModelSpec:
    """Return the model called `name`, or described by the config file of that path.

    Raises:
        RecipeError: there is no such model, or the file is not a usable config.
    """
    if name == "small-gpt":
        return ModelSpec(name, None, "CausalLM", context=SMALL_CONTEXT)
    if name in IMAGE_MODELS:
        small = name.startswith("small")
        patch = VITS[name]["patch"] if name in VITS else 4
        side, channels = (16, 1) if small else (224, 3)
        return ModelSpec(name, None, "ImageClassification", side=side, channels=channels, patch=patch)
    model_type, sizes = read_config(name)
    config = make_config(name, model_type, sizes)
    kind, called = kind_of(name, config, model_type)
    if kind == "ImageClassification":
        side, patch = _side(getattr(config, "image_size", None) or 224), _side(getattr(config, "patch_size", None) or 1)
        channels = getattr(config, "num_channels", 3)
        return ModelSpec(name, config, kind, side=side, channels=channels, patch=patch, called=called)
    context, extends = _context(config)
    seen: dict[str, int] = {}
    if kind == "ImageTextToText":
        vision = config.vision_config
        seen = {"side": _side(vision.image_size), "channels": 3, "patch": _side(vision.patch_size)}
    return ModelSpec(name, config, kind, context=context, extends=extends, called=called, **seen)


def _context(config: Any) -> tuple[int, bool]:
    """Return the longest sequence that a config names, and whether rotations of positions go on beyond it."""
    text = config.get_text_config()
    names = ((config, "max_target_positions"), (config, "max_position_embeddings"), (text, "max_position_embeddings"))
    longest = next((size for part, name in names if (size := getattr(part, name, 0))), 0)
    rotates = bool(getattr(text, "rope_parameters", None) or getattr(text, "rope_theta", None))
    return longest or sys.maxsize, rotates


def find_context(name: str) -> tuple[int, bool]:
    """Return the longest sequence that a model reads, 0 if it looks at images, and whether it can be extended.

    Raises:
        RecipeError: there is no such model, or no class of it is planned.
    """
    if name in IMAGE_MODELS or name == "small-gpt":
        return find_model(name).context, False
    if name in CONFIGS:
        return CONFIGS[name].context, CONFIGS[name].rotates
    from transformers import CONFIG_MAPPING

    model_type, sizes = read_config(name)
    if model_type not in CONFIG_MAPPING:
        return sizes.get("max_position_embeddings") or sys.maxsize, True
    config = make_config(name, model_type, sizes)
    images = kind_of(name, config, model_type)[0] == "ImageClassification"
    return (0, False) if images else _context(config)


def writes_answers(name: str) -> bool:
    """Return whether a model reads one sequence and writes another, whose length can be given on its own.

    Raises:
        RecipeError: there is no such model, or no class of it is planned.
    """
    if name in IMAGE_MODELS or name == "small-gpt" or name in CONFIGS:
        return False
    from transformers import CONFIG_MAPPING

    model_type, sizes = read_config(name)
    if model_type not in CONFIG_MAPPING:
        return False
    config = make_config(name, model_type, sizes)
    return bool(getattr(config, "is_encoder_decoder", False)) and kind_of(name, config, model_type)[0] == "Seq2SeqLM"


def is_mixture(name: str) -> bool:
    """Return whether a model is a mixture of experts, as far as its config says.

    Raises:
        RecipeError: there is no such model.
    """
    if name in IMAGE_MODELS or name == "small-gpt":
        return False
    sizes = read_config(name)[1]
    return any(part.get(experts) for part in (sizes, sizes.get("text_config") or {}) for experts in EXPERTS)


def read_config(name: str) -> tuple[str, dict[str, Any]]:
    """Return the model type and the sizes of a config of the catalog, or in the file or folder at the path `name`.

    Raises:
        RecipeError: there is no such model, or the file is not a usable config.
    """
    known = name if name in CONFIGS else catalog_or_path(name)
    if known in CONFIGS:
        return CONFIGS[known].model_type, dict(CONFIGS[known].sizes)
    if known in hub_models() and not Path(known).exists():
        sizes = copy.deepcopy(hub_models()[known].config)
        return sizes.pop("model_type"), sizes
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        near = _nearest(name)
        hint = f"did you mean {near}? " if near else ""
        raise RecipeError(f"There is no model {name!r} and no such file: {hint}`plan --list` shows all models.")
    try:
        sizes = json.loads(path.read_text(encoding="utf-8"))
        model_type = sizes.pop("model_type")
        if not isinstance(model_type, str):
            raise TypeError(model_type)
    except (ValueError, KeyError, AttributeError, TypeError):
        raise RecipeError(f"{path} is not a Hugging Face config: a JSON object with a model_type.") from None
    if model_type in SCANS or "mamba" in (sizes.get("layer_types") or sizes.get("layers_block_type") or ()):
        raise RecipeError(f"{name} is of type {model_type!r}, whose layers scan the sequence: that is not planned.")
    sizes.pop("quantization_config", None)  # the recipe says how weights are kept
    return model_type, sizes


_ASIDE = {"meta", "instruct", "it", "chat", "hf", "bnb", "4bit", "8bit", "gptq", "awq", "unsloth"}
_ASIDE |= {"uncased", "cased", "v0.1", "v0.2", "v0.3", "bf16", "fp8", "pretrained", "patch16", "224"}
_SIZE = re.compile(r"\d+(?:\.\d+)?[bm](?![a-z0-9])")


def _nearest(name: str) -> str:
    """Return the model of the catalog that looks most like `name`, an identifier of the Hub perhaps; "" if none does.

    A model of another size is none. To a size alone, such as "7b", up to three models are returned, in words.
    """
    whole = name.rpartition("/")[2].lower().replace("_", "-")
    known = {re.sub(r"-", "", each): each for each in [*model_names(), *CONFIGS, *hub_models()]}
    parts = [part for part in whole.split("-") if not difflib.get_close_matches(part, _ASIDE, 1, 0.87)]
    core, kernel = "".join(parts), "".join(part for part in parts if part not in ("base", "small"))
    for query in (whole.replace("-", ""), core, kernel):
        if query in known:
            return known[query]
    sizes = set(_SIZE.findall(whole))
    if whole in sizes:  # nothing but a size
        few = [each for each in dict.fromkeys([*model_names(), *CONFIGS]) if whole in _SIZE.findall(each.lower())][:3]
        return ", ".join(few[:-1]) + " or " + few[-1] if len(few) > 1 else "".join(few)
    near = [known[each] for each in difflib.get_close_matches(core, known, 9, 0.7)]
    return next((each for each in near if not sizes or not _SIZE.findall(each) or sizes & set(_SIZE.findall(each))), "")


def check_name(name: str) -> None:
    """Make sure that there is a model of this name, or a config at this path; nothing heavy is imported for it.

    Raises:
        RecipeError: as in `read_config`.
    """
    if name not in model_names():
        read_config(name)


def make_config(name: str, model_type: str, sizes: dict[str, Any]) -> Any:
    """Return the transformers config of a model, without a key-value cache.

    Raises:
        RecipeError: transformers does not know this type of model, or refuses the sizes.
    """
    from transformers import CONFIG_MAPPING, AutoConfig

    if model_type not in CONFIG_MAPPING:
        raise RecipeError(f"transformers does not know the model type {model_type!r}.")
    try:
        config = AutoConfig.for_model(model_type, **sizes)
    except Exception as error:  # config classes raise anything on wrong values
        raise RecipeError(f"{name}: {' '.join(str(error).split())[:200]}") from None
    for part in (config, config.get_text_config()):  # a vision-language model has a second config for its text
        part.use_cache = False
    return config


def count_parameters(name: str) -> int:
    """Return the number of parameters of the model called `name`; shared ones count once.

    Raises:
        RecipeError: there is no such model.
    """
    import torch

    model = find_model(name).build(TrainingConfig(name), torch.float32)
    return sum(parameter.numel() for parameter in model.parameters())


def spec_of(recipe: TrainingConfig) -> ModelSpec:
    """Return the model that `recipe` names, and make sure that the recipe's options suit it.

    Raises:
        RecipeError: there is no such model, or it cannot use one of the options.
    """
    spec = find_model(recipe.model)
    if spec.mixture and recipe.quantize == "none":
        raise RecipeError(
            f"{spec.name} is a mixture of experts: in a plain PyTorch loop, it is planned only with a quantized base. "
            "Use another engine."
        )
    if not spec.side and recipe.image_size:
        raise RecipeError(f"{spec.name} reads text: leave image_size out.")
    if recipe.image_size % spec.patch:
        raise RecipeError(f"{spec.name} takes images whose sides are a multiple of {spec.patch} pixels.")
    if not spec.images and recipe.seq > spec.context and not spec.extends:
        raise RecipeError(f"{spec.name} takes at most {spec.context} tokens; seq is {recipe.seq}.")
    if spec.images and (recipe.packed or recipe.lengths):
        raise RecipeError(f"{spec.name} takes images, which have no lengths: leave packed and lengths out.")
    if recipe.target_seq and spec.kind != "Seq2SeqLM":
        raise RecipeError(f"{spec.name} has no encoder for texts: leave target_seq out.")
    if recipe.channels_last and not spec.side:
        raise RecipeError(f"{spec.name} reads text: channels_last is for images.")
    if spec.config is None and recipe.dropout:
        raise RecipeError(f"{spec.name} has no dropout.")
    if spec.config is None and recipe.attention == "eager":
        raise RecipeError(f"{spec.name} has no eager attention: use attention sdpa.")
    if spec.config is None and recipe.lora_rank and not recipe.lora_targets:
        raise RecipeError(f"{spec.name} has no usual LoRA layers: name them in lora_targets.")
    return spec
