"""A data-parallel strategy, as the rank sees it that holds most; without a subclass, one GPU alone or DDP.

DDP keeps a second copy of the gradients in its communication buckets.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from ...core.units import MiB
from ..config import TrainingConfig
from .model import materialize

FIRST_BUCKET, BUCKET = MiB, 25 * MiB  # DistributedDataParallel's defaults


class Strategy:
    """The whole model on each rank: one GPU alone, or DDP.

    Subclasses change what a rank holds, updates and sends. "Trained" are the parameters with a gradient, "own" those of
    them that this rank's optimizer updates.

    Attributes:
        shards_parameters, shards_gradients, shards_state: what is split over the ranks.
        repeats: whether the second step allocates and frees exactly what the first did, but for the optimizer's state.
    """

    shards_parameters = shards_gradients = shards_state = False
    repeats = True

    def __init__(self, recipe: TrainingConfig) -> None:
        self.recipe = recipe

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The dtype of autocast; None switches it off."""
        return self.recipe.amp_dtype

    def process_group(self) -> AbstractContextManager[None]:
        """Return the context of the process group in which the steps run."""
        return nullcontext()

    def place(self, model: nn.Module) -> None:
        """Give `model`, which is on the meta device, the memory that it takes on this rank."""
        materialize(model)

    def buckets(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """Allocate the flat buffers through which gradients are reduced, as far as they outlive the backward pass."""
        return ddp_buckets(trained) if self.recipe.ranks > 1 else []

    def own(self, trained: list[Tensor]) -> list[Tensor]:
        """Return the parameters that this rank's optimizer updates."""
        return trained

    def hook_gradients(self, trained: list[Tensor], own: list[Tensor]) -> None:
        """Register what happens to a gradient as soon as it is complete."""

    def backward_pass(self) -> AbstractContextManager[None]:
        """Return the context of a backward pass."""
        return nullcontext()

    def before_optimizer_step(self, trained: list[Tensor], own: list[Tensor]) -> None:
        """Give the parameters to update their gradients."""

    def after_optimizer_step(self, own: list[Tensor]) -> None:
        """Free what `before_optimizer_step` has made."""

    def static_bytes(self, parameter_bytes: int, trained_bytes: int) -> int:
        """Return the bytes of parameters and gradients that a rank holds through a whole step, at least."""
        gradients = 0 if self.recipe.step_in_backward or self.shards_gradients else trained_bytes
        return parameter_bytes + gradients

    def bytes_sent(self, parameter_bytes: int, trained_bytes: int) -> int:
        """Return the bytes that a rank sends in one optimizer step when the collectives run as rings.

        An all-reduce costs 2 (N - 1) / N of its buffer, a reduce-scatter or an all-gather half of that. DDP and ZeRO-1
        reduce the gradients once a step; the updated parameters move once (Rajbhandari et al. 2020, section 7).
        """
        return self.ring(2, trained_bytes)

    def ring(self, times: int, nbytes: int) -> int:
        """Return the bytes that a rank passes on when a buffer of `nbytes` goes round a ring so many `times`."""
        return int((self.recipe.ranks - 1) / self.recipe.ranks * times * nbytes)


def ddp_buckets(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Allocate DDP's buckets: flat buffers into which gradients are copied to be all-reduced."""
    buckets, elements, limit = [], 0, FIRST_BUCKET
    dtype = parameters[0].dtype
    for parameter in reversed(parameters):
        elements += parameter.numel()
        if elements * dtype.itemsize >= limit:
            buckets.append(torch.empty(elements, dtype=dtype))
            elements, limit = 0, BUCKET
    return [*buckets, torch.empty(elements, dtype=dtype)] if elements else buckets
