"""A few training steps on one rank, of which the last is measured."""

import contextlib
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...core.device import rank_device
from ...meter.recorder import MemoryMeter
from ...ranks.collectives import Collectives

CATEGORIES = ("parameters", "gradients", "optimizer state")


@dataclass(frozen=True)
class Trained:
    """The results of some steps.

    Attributes:
        losses: of the joint batch, before each step.
        static: bytes of parameters, gradients and optimizer state on this rank.
        peak: bytes on this rank's device in the last step.
        sent: the collectives of the last step.
    """

    losses: list[float]
    static: int
    peak: int
    sent: Collectives


def train(step: Callable[[], Any], watch: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> Trained:
    """Call `step`, which returns this rank's loss, `steps` times; meter the last one where the rank computes.

    (The device of the parameters would mislead the meter: offloaded ones are on the host.)
    """
    gc.collect()  # an earlier model on this rank: its hooks form reference cycles
    losses = []
    for i in range(steps):
        meter = MemoryMeter(watch, optimizer, rank_device()) if i == steps - 1 else contextlib.nullcontext()
        with meter, Collectives() as sent:
            loss = step()
        losses.append(joint(loss))
    static = sum(meter.profile.largest[category] for category in CATEGORIES)
    return Trained(losses, static, meter.profile.peak_bytes, sent)


def joint(loss: torch.Tensor | float) -> float:
    """Return the mean over all ranks of their losses, which are tensors with one element, or numbers."""
    loss = torch.as_tensor(loss, device=rank_device()).detach().float().clone()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def worst(ranks: Sequence[Trained]) -> Trained:
    """Return the result of the rank with the highest peak: it runs out of memory first."""
    return max(ranks, key=lambda result: result.peak)
