"""Trains a model on text and watches, step by step, how many tokens each expert gets."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.data import Split
from ...core.progress_line import progress_line
from .window_model import SEES, windows

ROWS, RATE = 1024, 5e-3


@dataclass(frozen=True)
class Trained:
    """What became of a training run.

    Attributes:
        losses: of each step's batch, before the step.
        loads: of each step, layer and expert, the share of the choices; empty where there are no experts.
        test: mean loss over the test text.
    """

    losses: list[float]
    loads: Tensor
    test: float

    def smoothed(self, window: int = 20) -> list[float]:
        """Return the mean of the last `window` losses, or of as many as there are."""
        losses = torch.tensor(self.losses)
        return [losses[max(0, i + 1 - window) : i + 1].mean().item() for i in range(len(losses))]

    def busiest(self, last: int = 50) -> float:
        """Return the load of the busiest expert as a multiple of an even one: mean over layers and the last steps."""
        return (self.loads[-last:].amax(dim=2).mean() * self.loads.shape[2]).item()


def batch_at(text: Split, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a batch of windows from the training text: (rows, SEES), and the byte after each, (rows,)."""
    at = torch.randint(len(text.train_x) - SEES, (rows,), generator=generator)
    return windows(text.train_x, text.train_y, at.to(text.train_x.device))


def train(
    model: nn.Module,
    text: Split,
    steps: int = 200,
    also: Callable[[nn.Module], Tensor] | None = None,
    after: Callable[[nn.Module], object] | None = None,
) -> Trained:
    """Train `model` on `text` with AdamW, the same batches in every run.

    Args:
        also: takes a layer of experts and returns what is added to the loss for it.
        after: is called with each layer of experts after each step.
    """
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    layers = [block for block in model.blocks if hasattr(block, "router")]
    losses, loads = [], []
    for step in range(steps):
        if step % 20 == 0:
            progress_line(f"training: step {step} of {steps}")
        x, y = batch_at(text, ROWS, generator)
        loss = F.cross_entropy(model(x), y)
        losses.append(loss.item())
        optimizer.zero_grad()
        (loss if also is None else loss + sum(map(also, layers))).backward()
        optimizer.step()
        schedule.step()
        for layer in layers if after else ():
            after(layer)
        loads.append([(layer.counts / layer.counts.sum()).tolist() for layer in layers])
    progress_line("")
    return Trained(losses, torch.tensor(loads), loss_on_test_text(model, text))


@torch.no_grad()
def loss_on_test_text(model: nn.Module, text: Split, every: int = 4) -> float:
    """Return the mean loss of the windows that begin at each `every`-th byte of the test text."""
    at = torch.arange(0, len(text.test_x) - SEES, every, device=text.test_x.device)
    x, y = windows(text.test_x, text.test_y, at)
    return F.cross_entropy(model(x), y).item()
