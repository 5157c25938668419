"""The models that are measured, in the size that keeps a device busy for a moment, and one step of training."""

from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ....core.models import SmallCNN, SmallGPT
from ....planner import Recipe
from ..steps import Skip


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


class _Recomputed(nn.Module):
    """A block that keeps its input only."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


def checkpointed(model: nn.Module) -> nn.Module:
    """Let every block of a GPT be computed anew in the backward pass; returns the model."""
    model.blocks = nn.Sequential(*map(_Recomputed, model.blocks))
    return model


def lora_7b() -> Recipe:
    """Return the recipe with which a 7B model is fine-tuned: adapters of rank 16 on its attention, checkpointing."""
    return Recipe(
        "llama-2-7b",
        lora_rank=16,
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
        checkpointing="every",
        optimizer_impl="fused",
    )


def skip_without(device: torch.device, nbytes: int, words: str) -> None:
    """Skip the measurement of `words` unless `device` is a CUDA GPU with `nbytes` of memory.

    Raises:
        Skip: it is not, or it has less.
    """
    if device.type != "cuda" or torch.cuda.mem_get_info(device)[1] < nbytes:
        raise Skip(f"{words} needs a CUDA GPU of {nbytes / 2**30:.0f} GiB or more")


def free_bytes(device: torch.device) -> int:
    """Return the bytes that a step can still take on `device`; what PyTorch has cached counts as free."""
    if device.type != "cuda":
        return psutil.virtual_memory().available
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


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
