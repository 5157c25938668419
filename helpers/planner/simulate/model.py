"""The model of a recipe: built on the meta device, given memory, fed with a micro-batch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..catalog.models import ModelSpec
from ..config import RecipeError, TrainingConfig
from .blocks import Contexts, checkpoint_blocks, find_blocks
from .quantized import quantize_linears


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
    if recipe.quantize != "none" and not quantize_linears(model, recipe.quantize):
        raise RecipeError(f"{recipe.model} has no linear layers to quantize.")
    if recipe.lora_rank:
        model = _add_adapters(model, recipe)
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
        target_modules=list(recipe.lora_targets) or None,  # None: PEFT's own choice for the architecture
    )
    try:
        return get_peft_model(model, config, autocast_adapter_dtype=recipe.lora_dtype == "fp32")
    except (ValueError, KeyError) as error:
        linear = {name.rpartition(".")[2] for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        raise RecipeError(
            f"LoRA found no layer called {', '.join(recipe.lora_targets) or 'as usual'} in {recipe.model}; "
            f"its linear layers: {', '.join(sorted(linear))}."
        ) from error


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


def make_micro_batch(recipe: TrainingConfig, spec: ModelSpec) -> dict[str, Tensor]:
    """Return one micro-batch of B by the names of the model's arguments.

    Token ids and labels, (B, seq); of classes, labels (B,); pixels, (B, channels, side, side), and labels (B,); or half
    a minute of sound, (B, mels, frames), and labels (B, seq).
    """
    size, long = recipe.micro_batch_size, torch.long  # nothing is made that is not used: each tensor is counted
    if spec.images:
        side = recipe.image_size or spec.side
        pixels = torch.zeros(size, spec.channels, side, side, dtype=recipe.weight_dtype)
        return {"pixel_values": pixels, "labels": torch.zeros(size, dtype=long)}
    if spec.kind == "SpeechSeq2Seq":  # a convolution of stride 2 makes positions of frames
        shape = (size, spec.config.num_mel_bins, 2 * spec.config.max_source_positions)
        features = torch.zeros(shape, dtype=recipe.weight_dtype)
        return {"input_features": features, "labels": torch.zeros(size, recipe.seq, dtype=long)}
    ids = torch.zeros(size, recipe.seq, dtype=long)
    if spec.kind == "QuestionAnswering":
        return {"input_ids": ids, **{f"{end}_positions": torch.zeros(size, dtype=long) for end in ("start", "end")}}
    return {
        "input_ids": ids,
        "labels": torch.zeros(size, dtype=long) if spec.kind == "SequenceClassification" else torch.zeros_like(ids),
    }


def loss_of(spec: ModelSpec, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return the mean loss of one micro-batch, a scalar."""
    if spec.config is not None:
        return model(**inputs).loss
    x, labels = inputs.values()
    return F.cross_entropy(model(x).float().flatten(0, -2), labels.flatten())
