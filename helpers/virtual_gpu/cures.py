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
        return f"{self.change}: saves up to {human_bytes(self.saves)}"


def cures_for(owners: Owners, unused: int, checkpoints: bool, batch: int | None = None) -> list[Cure]:
    """Return the changes that save at least a hundredth of what is held, those that cost least trouble first.

    Args:
        owners: of the peak.
        unused: bytes that are reserved and not allocated.
        checkpoints: whether the program uses activation checkpointing already.
        batch: of the program; None where it is not known.
    """
    held = owners.categories
    saved = held.get("activations", 0) + held.get("recomputed activations", 0)
    by_batch = saved + held.get("temporaries", 0) + held.get("inputs and other", 0)
    cures = [
        Cure("expandable segments (PYTORCH_ALLOC_CONF=expandable_segments:True)", unused),
        Cure("half the batch, twice the gradient accumulation", 0 if batch == 1 else by_batch // 2),
        Cure("activation checkpointing of every block", 0 if checkpoints else saved * 9 // 10),
        Cure("an 8-bit optimizer (torchao or bitsandbytes)", _shrunk(owners, "optimizer state", 1)),
        Cure(
            "the optimizer step inside the backward pass, which frees each gradient at once", held.get("gradients", 0)
        ),
        Cure("LoRA: no optimizer state or gradients for frozen weights", _of(held, "optimizer state", "gradients")),
        Cure("weights in BF16 where they are in FP32", _shrunk(owners, "parameters", 2)),
    ]
    return [cure for cure in cures if cure.saves >= owners.allocated / 100]


def _shrunk(owners: Owners, category: str, item: int) -> int:
    """Return what it saves to keep a category in elements of `item` bytes; FP32 where that is unknown."""
    held = owners.categories.get(category, 0)
    sizes = {size: nbytes for (name, size), nbytes in owners.items.items() if name == category} or {4: held}
    return sum(nbytes - nbytes * item // size for size, nbytes in sizes.items() if size > item)


def _of(held: dict[str, int], *names: str) -> int:
    return sum(held.get(name, 0) for name in names)
