"""A training run of one rung, to be held against the same run of another."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.device import pick_device
from .ladder_task import LadderTask, Rung


@dataclass(frozen=True)
class LadderRun:
    """What a run depends on; equal runs give equal figures.

    Attributes:
        rate: of learning, at its highest.
        seed: of the weights and of the order of the images.
        pool: how many of the training images it trains on, the first ones.
        tested: images on which it is scored, from the first to before the second.
        add: adds a change to a weight or a mean in place of Signum's stochastic rounding.
    """

    rung: Rung
    rate: float
    seed: int
    pool: int
    tested: tuple[int, int]
    add: Callable[[Tensor, Tensor], Any] | None = None
    updates: ClassVar[int] = 32

    def trained(self, task: LadderTask) -> nn.Module:
        """Train a model on batches of the pool and return it: a short warm-up, then half a cosine."""
        model = task.model(self.rung, self.seed, pick_device())
        optimizer: Any = task.optimizer(self.rung, model, self.rate)
        if self.add:
            optimizer.add = self.add
        order, waiting, batches = np.random.default_rng(self.seed), [], self.pool // task.batch
        for i in range(self.updates):
            waiting = waiting or np.split(order.permutation(self.pool)[: batches * task.batch], batches)
            for group in optimizer.param_groups:
                group["lr"] = self.rate * min(1, (i + 1) / 6) * (1 + math.cos(math.pi * i / self.updates)) / 2
            task.step(self.rung, model, optimizer, waiting.pop())
        return model

    def scored(self, task: LadderTask) -> tuple[float, float]:
        """Train; return mean cross entropy and accuracy (%) on the images `tested`."""
        model = self.trained(task)
        where, images = next(model.parameters()).device, slice(*self.tested)
        with torch.no_grad(), torch.autocast(where.type, torch.bfloat16, enabled=self.rung.autocast):
            logits = model(torch.from_numpy(task.images[images]).to(where, self.rung.dtype)).float().cpu()
        right = torch.from_numpy(task.labels[images])
        return F.cross_entropy(logits, right).item(), 100 * (logits.argmax(1) == right).float().mean().item()
