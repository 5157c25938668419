"""Train two real steps of a recipe, to hold a prediction against the truth."""

from contextlib import nullcontext

import torch
from torch import nn

from ..memory import MemoryMeter
from .catalog import check_subject, find_model
from .recipe import Recipe, RecipeError
from .simulate import SIMULATED_STEPS, batch_of, build, loss_of, materialize, optimizers_of, step_in_backward


def measure_recipe(recipe: Recipe, device: torch.device | None = None) -> int:
    """Train two steps with random weights; return the peak in bytes.

    On CUDA it is the caching allocator's. Elsewhere it is the meter's, with the kernels of that device.

    Raises:
        RecipeError: no GPU and no `device` given, or a recipe for more than one GPU or with quantized weights.
    """
    if device is None:
        if not torch.cuda.is_available():
            raise RecipeError("--measure trains on a CUDA GPU, and PyTorch sees none here.")
        device = torch.device("cuda")
    if recipe.ranks > 1 or recipe.offload != "none" or recipe.quantize != "none" or recipe.optimizer == "adamw-8bit":
        raise RecipeError("--measure takes one GPU, no offload, no quantized weights and no 8-bit optimizer.")
    subject = find_model(recipe.model)
    check_subject(recipe, subject)
    low = recipe.amp_dtype
    torch.manual_seed(0)
    with torch.device(device):
        model = build(recipe, subject, lambda: (nullcontext(), nullcontext()))
        materialize(model, device)
        _fill(model)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizers = optimizers_of(recipe, trained)
        if recipe.step_in_backward:
            step_in_backward(optimizers)
        inputs = batch_of(recipe, subject)
        with MemoryMeter(model, optimizers, device, by_tenant=False) as meter:
            for _ in range(SIMULATED_STEPS):
                for _ in range(recipe.accumulate):
                    with torch.autocast(device.type, dtype=low, enabled=low is not None):
                        loss = loss_of(subject, model, inputs) / recipe.accumulate
                    loss.backward()
                    del loss
                for optimizer in [] if recipe.step_in_backward else optimizers:
                    optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad(set_to_none=not recipe.keep_grads)
    return meter.peak_bytes


def _fill(model: nn.Module) -> None:
    """Draw small random weights, so that two steps stay finite."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_floating_point():
            tensor.zero_()
        elif "norm" in name or "bn" in name or "var" in name:
            nn.init.ones_(tensor)
        else:
            nn.init.normal_(tensor, std=0.02)
