"""The model of a recipe: built on the meta device, given memory, fed with a micro-batch."""

from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

import torch
from torch import Tensor, nn

from ..catalog.models import ModelSpec
from ..config import RecipeError, TrainingConfig
from .blocks import Contexts, checkpoint_blocks, find_blocks
from .experts import spread_experts
from .quantized import quantize_linears

ALL_LINEAR = "all-linear"  # PEFT's word for all linear layers but the output head
_TYPED = ("paligemma", "gemma3")  # tell images and texts apart by a type of each token


def build(recipe: TrainingConfig, spec: ModelSpec, contexts: Contexts) -> nn.Module:
    """Build the model on the meta device, with quantized layers, adapters and checkpointing.

    Args:
        recipe: how to train it.
        spec: the model that the recipe names.
        contexts: makes the two contexts in which checkpointed blocks run forward and are recomputed.

    Raises:
        RecipeError: the model has no layers for one of these.
    """
    model = spec.build(recipe, recipe.weight_dtype)
    quantized = recipe.quantize != "none"
    if quantized and spec.mixture:
        spread_experts(model, recipe.model)
    if quantized and not quantize_linears(model, recipe.quantize, recipe.quantized_inputs):
        raise RecipeError(f"{recipe.model} has no linear layers to quantize.")
    if recipe.lora_rank:
        model = _add_adapters(model, recipe)
    _freeze(model, recipe)
    if recipe.channels_last:
        model.to(memory_format=torch.channels_last)
    if recipe.checkpointing != "none":
        if not find_blocks(model):
            raise RecipeError(f"{recipe.model} has no repeated blocks to checkpoint: use checkpointing none.")
        checkpoint_blocks(model, recipe.checkpointing, contexts)
    return model.train()


def _add_adapters(model: nn.Module, recipe: TrainingConfig) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=recipe.lora_rank,
        lora_alpha=recipe.lora_alpha or 2 * recipe.lora_rank,
        lora_dropout=recipe.lora_dropout,
        target_modules=_targets(model, recipe),
        use_dora=recipe.dora,
        modules_to_save=list(recipe.modules_to_save) or None,
    )
    for name in recipe.modules_to_save:
        _named(model, name)
    try:
        with _experts_as_they_are():
            return get_peft_model(model, config, autocast_adapter_dtype=recipe.lora_dtype == "fp32")
    except (ValueError, KeyError) as error:
        linear = {name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        missing = f"LoRA found no layer called {', '.join(recipe.lora_targets)} in {recipe.model}"
        raise RecipeError(f"{missing}; its linear layers: {', '.join(sorted(linear))}.") from error


def _targets(model: nn.Module, recipe: TrainingConfig) -> str | list[str]:
    """Return which layers get adapters: those that the recipe names, PEFT's for the type of model, or all linear."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as USUAL

    names = recipe.lora_targets or USUAL.get(model.config.model_type) or (ALL_LINEAR,)
    return names if isinstance(names, str) else ALL_LINEAR if tuple(names) == (ALL_LINEAR,) else list(names)


def _experts_as_they_are() -> AbstractContextManager:
    """Keep PEFT from looking for a mixture's experts where transformers 5 has them: here they are linear layers."""
    try:
        from peft.utils import transformers_weight_conversion as conversion
    except ImportError:  # before transformers 5
        return nullcontext()
    return patch.object(conversion, "convert_peft_config_for_transformers", lambda *_, **__: None)


def _named(model: nn.Module, name: str) -> nn.Module:
    """Return the module whose name is `name`, or ends with it.

    Raises:
        RecipeError: there is none.
    """
    for full, module in model.named_modules():
        if f".{full}".endswith(f".{name}"):
            return module
    known = dict.fromkeys(full.rpartition(".")[2] for full, _ in model.named_modules() if full)
    names = ", ".join(name for name in known if not name.isdecimal())
    raise RecipeError(f"There is no module called {name}; there are {names[:300]}.")


def _freeze(model: nn.Module, recipe: TrainingConfig) -> None:
    """Switch off the gradients of what is not trained."""
    if recipe.train_only:
        model.requires_grad_(False)
        for name in recipe.train_only:
            _named(model, name).requires_grad_(True)
    for name in recipe.freeze:
        _named(model, name).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise RecipeError("Nothing is left to train: freeze less.")


def materialize(model: nn.Module, device: torch.device | str = "cpu") -> None:
    """Move `model` from the meta device to `device`, with values undefined; tied parameters stay tied."""
    homes: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                homes.setdefault(id(parameter), []).append((module, name))
    model.to_empty(device=device)
    for (first, name), *others in homes.values():
        for module, other in others:
            module._parameters[other] = first._parameters[name]


def make_micro_batch(recipe: TrainingConfig, spec: ModelSpec, seq: int) -> dict[str, Tensor]:
    """Return one micro-batch of B by the names of the model's arguments.

    Token ids and labels, (B, seq), and an image for each where the model looks at some; of classes, labels (B,);
    pixels, (B, channels, side, side), and labels (B,); or half a minute of sound, (B, mels, frames), and labels
    (B, seq). DPO has two sequences for each of the micro-batch.
    """
    size, long = recipe.micro_batch_size, torch.long  # nothing is made that is not used: each tensor is counted
    size *= 2 if recipe.method == "dpo" else 1
    if spec.side:
        side = recipe.image_size or spec.side
        pixels = torch.zeros(size, spec.channels, side, side, dtype=recipe.weight_dtype)
        pixels = pixels.to(memory_format=torch.channels_last) if recipe.channels_last else pixels
    if spec.images:
        return {"pixel_values": pixels, "labels": torch.zeros(size, dtype=long)}
    if spec.kind == "SpeechSeq2Seq":  # a convolution of stride 2 makes positions of frames
        shape = (size, spec.config.num_mel_bins, 2 * spec.config.max_source_positions)
        features = torch.zeros(shape, dtype=recipe.weight_dtype)
        return {"input_features": features, "labels": torch.zeros(size, seq, dtype=long)}
    ids = torch.zeros(size, seq, dtype=long)
    if spec.side:  # an image before each text
        types = {"token_type_ids": torch.zeros_like(ids)} if spec.config.model_type in _TYPED else {}
        return {"input_ids": ids, "pixel_values": pixels, "labels": torch.zeros_like(ids)} | types
    if spec.kind == "QuestionAnswering":
        return {"input_ids": ids, **{f"{end}_positions": torch.zeros(size, dtype=long) for end in ("start", "end")}}
    if recipe.target_seq:
        return {"input_ids": ids, "labels": torch.zeros(size, recipe.target_seq, dtype=long)}
    return {
        "input_ids": ids,
        "labels": torch.zeros(size, dtype=long) if spec.kind == "SequenceClassification" else torch.zeros_like(ids),
    }
