"""What every rung of the capstone's ladder trains: one vision transformer on digits, 512 images per update."""

import functools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...core.data import digits
from ...core.models import ViT
from ...meter.recorder import MemoryMeter
from .signum import Signum


@dataclass(frozen=True)
class Rung:
    """One way to take the same training step.

    Attributes:
        name: in tables.
        autocast: whether the forward pass runs under autocast to BF16.
        micro: images in a micro-batch.
        checkpointing: whether each block is recomputed in the backward pass.
        keep_random: whether `checkpoint` saves the random generator's state for each block, as it does by default.
        optimizer: "adamw" or "signum".
        fold: whether gradients go into the optimizer state during the backward pass.
        dtype: of weights and optimizer state.
    """

    name: str
    autocast: bool = False
    micro: int = 512
    checkpointing: bool = False
    keep_random: bool = True
    optimizer: str = "adamw"
    fold: bool = False
    dtype: torch.dtype = torch.float32


class LadderTask:
    """The images in NumPy, as a data loader would keep them, and the steps that a rung takes with them.

    Args:
        batch: images in an update.

    Attributes:
        batch, trained: images in an update, and to train on; the one divides the other.
        shape: arguments of the ViT.
        images: (1797, 1, 8, 8) of FP32, the first `trained` to train on, the others to test on.
        labels: (1797,) of int64.
    """

    trained = 1024

    def __init__(self, batch: int = 512) -> None:
        self.batch = batch
        self.shape = {"side": 8, "patch": 4, "layers": 4, "width": 32, "heads": 4, "inner": 128}
        data = digits()
        self.images = torch.cat([data.train_x, data.test_x]).numpy()
        self.labels = torch.cat([data.train_y, data.test_y]).numpy()

    def model(self, rung: Rung, seed: int, where: torch.device | str) -> nn.Module:
        """Make the model of `rung` on the device `where`; its weights depend on `seed` alone."""
        torch.manual_seed(seed)
        model = ViT(**self.shape).to(where, rung.dtype)
        if rung.checkpointing:
            how = {"use_reentrant": False, "preserve_rng_state": rung.keep_random}
            for block in model.blocks:
                block.forward = functools.partial(checkpoint, block.forward, **how)
        return model

    def optimizer(self, rung: Rung, model: nn.Module, rate: float = 4e-3) -> torch.optim.Optimizer:
        """Make the optimizer of `rung`; where it folds, each gradient goes into the mean as soon as it exists."""
        if rung.optimizer == "adamw":
            return torch.optim.AdamW(model.parameters(), lr=rate)
        optimizer = Signum(model.parameters(), lr=rate)
        if rung.fold:
            for p in model.parameters():
                p.register_post_accumulate_grad_hook(optimizer.take)
        return optimizer

    def gradients(self, rung: Rung, model: nn.Module, rows: np.ndarray) -> None:
        """Add up the gradient of the mean loss of the images `rows`, a micro-batch at a time."""
        where = next(model.parameters()).device
        for part in np.split(rows, range(rung.micro, len(rows), rung.micro)):
            x, y = (torch.from_numpy(a[part]).to(where) for a in (self.images, self.labels))
            with torch.autocast(where.type, torch.bfloat16, enabled=rung.autocast):
                logits = model(x.to(rung.dtype))
            (F.cross_entropy(logits.float(), y, reduction="sum") / len(rows)).backward()

    def step(self, rung: Rung, model: nn.Module, optimizer: torch.optim.Optimizer, rows: np.ndarray) -> None:
        """Update `model` once with the images `rows`."""
        self.gradients(rung, model, rows)
        optimizer.step()
        optimizer.zero_grad()

    def gradient(self, rung: Rung, rows: np.ndarray, where: torch.device | str) -> Tensor:
        """Return the gradient of a new model as one vector: of all weights, for the images `rows`."""
        model = self.model(rung, 0, where)
        self.gradients(rung, model, rows)
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    def weights_after(self, rung: Rung, updates: list[np.ndarray], where: torch.device | str) -> dict[str, Tensor]:
        """Train a new model, one update with each of `updates`, and return its weights by name."""
        model = self.model(rung, 0, where)
        optimizer = self.optimizer(rung, model)
        for rows in updates:
            self.step(rung, model, optimizer, rows)
        return {name: p.detach() for name, p in model.named_parameters()}

    def meter(self, rung: Rung, rows: np.ndarray, where: torch.device | str) -> MemoryMeter:
        """Return the meter of one step with the images `rows`, after a step that made the optimizer state."""
        model = self.model(rung, 0, where)
        optimizer = self.optimizer(rung, model)
        self.step(rung, model, optimizer, rows)
        with MemoryMeter(model, optimizer) as meter:
            self.step(rung, model, optimizer, rows)
        return meter
