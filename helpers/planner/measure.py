"""Train two real steps of a recipe, to compare a prediction with a measurement."""

import gc
import itertools
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn

from ..meter.recorder import MemoryMeter
from .catalog.models import spec_of
from .config import RecipeError, TrainingConfig
from .simulate.model import build, make_micro_batch, materialize
from .simulate.objective import Objective
from .simulate.optimizers import make_optimizers, matrices_of, step_in_backward
from .simulate.steps import simulated_steps

_REAL = {  # bitsandbytes' own, where a plan has a stand-in
    "adamw-8bit": "AdamW8bit",
    "adamw-8bit-paged": "PagedAdamW8bit",
    "adamw-32bit-paged": "PagedAdamW32bit",
    "lion-8bit": "Lion8bit",
    "lion-8bit-paged": "PagedLion8bit",
}


@dataclass(frozen=True)
class MeasuredRecipe:
    """What two real steps of a recipe took.

    Attributes:
        peak_bytes: on CUDA the caching allocator's peak; elsewhere the meter's, with the kernels of that device.
        reserved_bytes: what CUDA's allocator reserved for it; None elsewhere.
        seconds: the second step, with all its micro-batches, under the meter.
    """

    peak_bytes: int
    reserved_bytes: int | None
    seconds: float


def measure_recipe(recipe: TrainingConfig, device: torch.device | None = None) -> MeasuredRecipe:
    """Train two steps of `recipe` with random weights, on the CUDA GPU if no `device` is given.

    Args:
        recipe: what to train, and how.
        device: where.

    Raises:
        RecipeError: no GPU and no `device` given; a recipe for more than one GPU or with quantized weights; or one with
            an 8-bit optimizer where bitsandbytes is not installed.
    """
    if device is None:
        if not torch.cuda.is_available():
            raise RecipeError("--measure trains on a CUDA GPU, and PyTorch sees none here.")
        device = torch.device("cuda")
    if recipe.ranks > 1 or recipe.offload != "none" or recipe.quantize != "none":
        raise RecipeError("--measure takes one GPU, no offload and no quantized weights.")
    if recipe.optimizer in _REAL and find_spec("bitsandbytes") is None:
        raise RecipeError(f"--measure needs bitsandbytes for {recipe.optimizer}: python -m pip install bitsandbytes")
    if recipe.optimizer.startswith("galore"):
        raise RecipeError("--measure has no GaLore: the plan runs a stand-in.")
    spec = spec_of(recipe)
    low = recipe.amp_dtype
    torch.manual_seed(0)
    if device.type == "cuda":
        gc.collect()  # the model of a recipe before may hang in a cycle, and would count
        torch.cuda.empty_cache()  # as what is cached would count as reserved
        torch.cuda.reset_peak_memory_stats(device)
    with torch.device(device), ExitStack() as after:
        model = build(recipe, spec, lambda: (nullcontext(), nullcontext()))
        objective = Objective(recipe, spec, model)
        for each in (model, *objective.others):
            materialize(each, device)
            _fill(each)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizers = _real_optimizers(recipe, trained, matrices_of(model))
        for handle in step_in_backward(optimizers) if recipe.step_in_backward else ():
            after.callback(handle.remove)
        if recipe.compile:
            model.compile()
        batches = itertools.cycle([make_micro_batch(recipe, spec, seq) for seq in recipe.lengths or (recipe.seq,)])
        held = nn.ModuleList([model, *objective.others])
        with MemoryMeter(held, optimizers, device, by_category=False) as meter:
            for _ in range(simulated_steps(recipe)):
                began = _now(device)
                for _ in range(recipe.gradient_accumulation_steps):
                    with torch.autocast(device.type, dtype=low, enabled=low is not None):
                        loss = objective.loss(model, next(batches)) / recipe.gradient_accumulation_steps
                    loss.backward()
                    del loss
                for optimizer in [] if recipe.step_in_backward else optimizers:
                    optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad(set_to_none=recipe.set_to_none)
            seconds = _now(device) - began
    reserved = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
    everything = meter.peak_bytes + meter.outside_bytes  # with cuBLAS's workspaces, which may be there already
    return MeasuredRecipe(everything, reserved, seconds)


def _real_optimizers(
    recipe: TrainingConfig, trained: list[nn.Parameter], matrices: set[int]
) -> list[torch.optim.Optimizer]:
    """Return the optimizers of a plan, but bitsandbytes' own where the plan has a stand-in for them."""
    if recipe.optimizer not in _REAL:
        return make_optimizers(recipe, trained, matrices)
    from bitsandbytes import optim

    make = getattr(optim, _REAL[recipe.optimizer])
    return [make([p]) for p in trained] if recipe.step_in_backward else [make(trained)]


def _now(device: torch.device) -> float:
    """Return the time in seconds, once the GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _fill(model: nn.Module) -> None:
    """Draw small random weights, so that two steps stay finite."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_floating_point():
            tensor.zero_()
        elif "norm" in name or "bn" in name or "var" in name:
            nn.init.ones_(tensor)
        else:
            nn.init.normal_(tensor, std=0.02)
