"""What to change first when a program does not fit, with the bytes that it would save at this peak."""

from dataclasses import dataclass

from ..core.units import human_bytes
from .owners import Owners


@dataclass(frozen=True)
class Cure:
    """One change.

    Attributes:
        change: in words.
        saves: bytes at the peak, at most.
    """

    change: str
    saves: int

    def __str__(self) -> str:
        return f"{self.change}: up to {human_bytes(self.saves)}"


def cures_for(owners: Owners, unused: int) -> list[Cure]:
    """Return the changes that save something, those that cost least trouble first.

    Args:
        owners: of the peak.
        unused: bytes that are reserved and not allocated.
    """
    held = owners.categories
    saved = held.get("activations", 0) + held.get("recomputed activations", 0)
    by_batch = saved + held.get("temporaries", 0) + held.get("inputs and other", 0)
    cures = [
        Cure("expandable segments (PYTORCH_ALLOC_CONF=expandable_segments:True)", unused),
        Cure("half the batch, twice the gradient accumulation", by_batch // 2),
        Cure("activation checkpointing of every block", saved * 9 // 10),
        Cure("an 8-bit optimizer (torchao or bitsandbytes)", held.get("optimizer state", 0) * 3 // 4),
        Cure("the optimizer step inside the backward pass, so that gradients do not pile up", held.get("gradients", 0)),
        Cure("LoRA: no optimizer state and no gradients for frozen weights", _of(held, "optimizer state", "gradients")),
        Cure("weights in BF16 where they are in FP32", held.get("parameters", 0) // 2),
    ]
    return [cure for cure in cures if cure.saves >= 2**20]


def _of(held: dict[str, int], *names: str) -> int:
    return sum(held.get(name, 0) for name in names)
