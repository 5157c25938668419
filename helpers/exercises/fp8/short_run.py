"""A short training run, always the same but for what the linear layers compute in.

Two runs can be compared if they differ in one thing. Here that is `change`, a function that may replace layers of the
model before training starts. Weights, batches and optimizer are the same for the same seed.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.data import english
from ...core.models import SmallGPT
from ...meter.recorder import MemoryMeter

ROWS, LENGTH = 8, 64  # chunks of text in a batch, and bytes in a chunk
PARTS = 64  # each batch counts as one of so many micro-batches, so that gradients are as small as in a large run

Change = Callable[[nn.Module], Any]


class ShortRun:
    """Trains a GPT of two layers in BF16 to predict the next byte of English text.

    Args:
        device: of model and text.
        steps: updates in a run, each from one batch of 512 bytes.
    """

    def __init__(self, device: torch.device, steps: int = 60) -> None:
        self.device, self.steps = device, steps
        self.text = english(device)

    @staticmethod
    def linears(model: nn.Module) -> dict[str, nn.Linear]:
        """Return all linear layers by name, except the head: it is also the embedding, and usually stays in BF16."""
        return {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and name != "head"}

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the chunks of text of a step and the bytes to predict, each (8, 64): the same in every run."""
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(self.text.train_x) - LENGTH, (ROWS, 1), generator=generator)
        places = (starts + torch.arange(LENGTH)).to(self.device)  # (rows, length)
        return self.text.train_x[places], self.text.train_y[places]

    @staticmethod
    def loss(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch, in FP32."""
        return F.cross_entropy(model(ids).float().flatten(0, 1), targets.flatten())

    def train(
        self, change: Change | None = None, seed: int = 0, around: Callable[[], Any] = contextlib.nullcontext
    ) -> tuple[nn.Module, list[float]]:
        """Apply `change` to a new model and train it, each forward pass inside `around()`; return it and its losses."""
        model, optimizer = self._made(change, seed, width=128, rate=5e-4)
        losses = []
        for step in range(self.steps):
            with around():
                loss = self.loss(model, *self.batch(step))
            (loss / PARTS).backward()  # its share of a batch of 64 micro-batches
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return model, losses

    def zero_gradients(self, model: nn.Module) -> float:
        """Return the percentage of zeros among the gradients of weight matrices in blocks, for one more batch."""
        (self.loss(model, *self.batch(self.steps)) / PARTS).backward()
        weights = [p for name, p in model.named_parameters() if name.startswith("blocks") and p.dim() == 2]
        return 100 * (torch.cat([weight.grad.flatten() for weight in weights]) == 0).float().mean().item()

    def meter(self, change: Change | None = None, width: int = 256) -> MemoryMeter:
        """Return the meter of one whole step of a model of `width`, after a step that made the optimizer state."""
        model, optimizer = self._made(change, 0, width, rate=1e-3)
        batch = self.batch(0)  # made before, so that the meter sees the batch and not the whole text
        for repeat in range(2):
            with MemoryMeter(model, optimizer) if repeat else contextlib.nullcontext() as meter:
                self.loss(model, *batch).backward()
                optimizer.step()
            optimizer.zero_grad()
        return meter

    def _made(
        self, change: Change | None, seed: int, width: int, rate: float
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = SmallGPT(layers=2, width=width).to(self.device, torch.bfloat16)
        if change:
            change(model)
        return model, torch.optim.AdamW(model.parameters(), lr=rate)
