"""The optimizer of a recipe, and the step inside the backward pass."""

import contextlib
from collections.abc import Callable

import torch
from torch import Tensor

from ..config import TrainingConfig
from .quantized import EightBitAdam


def make_optimizers(recipe: TrainingConfig, parameters: list[Tensor]) -> list[torch.optim.Optimizer]:
    """Return one optimizer for all parameters, or one for each if the step is taken in the backward pass."""
    options = {"fused": True} if recipe.optimizer_impl == "fused" else {"foreach": recipe.optimizer_impl == "foreach"}
    make = {
        "adamw": lambda ps: torch.optim.AdamW(ps, **options),
        "adam": lambda ps: torch.optim.Adam(ps, **options),
        "sgd": lambda ps: torch.optim.SGD(ps, **options),
        "sgd-momentum": lambda ps: torch.optim.SGD(ps, momentum=0.9, **options),
        "adafactor": lambda ps: torch.optim.Adafactor(ps, **options),
        "adamw-8bit": EightBitAdam,
        "adamw-8bit-paged": EightBitAdam,
    }[recipe.optimizer]
    return [make([p]) for p in parameters] if recipe.step_in_backward else [make(parameters)]


def step_in_backward(
    optimizers: list[torch.optim.Optimizer],
    context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> None:
    """Update each parameter as soon as its gradient is complete, then free the gradient.

    Args:
        optimizers: one for each parameter.
        context: makes the context in which a step runs; function modes are off inside the backward pass.
    """

    def update(parameter: Tensor, optimizer: torch.optim.Optimizer) -> None:
        with context():
            optimizer.step()
        optimizer.zero_grad()

    for optimizer in optimizers:
        (parameter,) = optimizer.param_groups[0]["params"]
        parameter.register_post_accumulate_grad_hook(lambda p, optimizer=optimizer: update(p, optimizer))
