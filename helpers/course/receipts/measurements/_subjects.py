"""The models that are measured, in the size that keeps a device busy for a moment, and one step of training."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....core.models import SmallCNN, SmallGPT


@dataclass(frozen=True)
class ModelSpec:
    """A model with a batch.

    Attributes:
        words: what it is, for the receipt.
        make: builds it, on the CPU.
        batch: returns inputs and targets on a device.
    """

    words: str
    make: Callable[[], nn.Module]
    batch: Callable[[torch.device], tuple[Tensor, Tensor]]


def gpt(device: torch.device) -> ModelSpec:
    """Return a GPT: of the size of GPT-2 small on a GPU."""
    layers, width, vocabulary, rows, length = (
        (12, 768, 50304, 8, 1024) if device.type == "cuda" else (4, 128, 256, 4, 128)
    )

    def batch(where: torch.device) -> tuple[Tensor, Tensor]:
        ids = torch.randint(vocabulary, (rows, length + 1), device=where)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    words = f"GPT, {layers} layers of {width}, {rows} x {length} tokens"
    return ModelSpec(words, lambda: SmallGPT(vocabulary, length, layers, width, width // 64), batch)


def cnn(device: torch.device) -> ModelSpec:
    """Return a convolutional network: wide, with large images, on a GPU."""
    width, rows, side = (128, 256, 64) if device.type == "cuda" else (16, 64, 16)

    def batch(where: torch.device) -> tuple[Tensor, Tensor]:
        return torch.randn(rows, 1, side, side, device=where), torch.randint(10, (rows,), device=where)

    return ModelSpec(f"CNN, {width} channels, {rows} images of {side}", lambda: SmallCNN(width), batch)


@dataclass
class Trainer:
    """A model, its optimizer and a batch: `step()` trains once.

    Args:
        dtype: what autocast computes in; FP32 switches it off.
        optimizer: made from the parameters; None is AdamW.
    """

    subject: ModelSpec
    device: torch.device
    dtype: torch.dtype = torch.float32
    optimizer: Callable[..., torch.optim.Optimizer] | None = None
    change: Callable[[nn.Module], nn.Module] | None = None

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        model = self.subject.make().to(self.device)
        self.model = self.change(model) if self.change else model
        make = self.optimizer or torch.optim.AdamW
        self.stepper = make(self.model.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.x, self.y = self.subject.batch(self.device)

    def step(self) -> None:
        """Train one step; FP16 scales its loss."""
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            logits = self.model(self.x)
        loss = F.cross_entropy(logits.float().flatten(0, -2), self.y.flatten())
        self.scaler.scale(loss).backward()
        self.scaler.step(self.stepper)
        self.scaler.update()
        self.stepper.zero_grad(set_to_none=True)
