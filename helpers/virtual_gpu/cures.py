"""What to change first when a program does not fit, with the bytes that each change would save."""

from dataclasses import dataclass

from ..core.units import human_bytes
from .owners import Owners

EXPANDABLE = "expandable segments (PYTORCH_ALLOC_CONF=expandable_segments:True)"
FUSED = "the fused optimizer (fused=True), which makes no temporaries"
HALF = "half the batch"
ACCUMULATED = f"{HALF}, twice the gradient accumulation"
CHECKPOINTING = "activation checkpointing of every block"
TURNED_ON = "model.train(): activation checkpointing is already on, but has no effect in eval mode"
EIGHT_BITS = "an 8-bit optimizer (torchao or bitsandbytes)"
IN_BACKWARD = "the optimizer step inside the backward pass, which frees each gradient at once"
LORA = "LoRA, if you fine-tune: no optimizer state or gradients for frozen weights"
BF16 = "weights in BF16 instead of FP32, and everything computed from them"

CHECKPOINTED = 0.1  # of the saved tensors that checkpointing keeps: the blocks' inputs, and one block's own
EIGHT = 1 + 4 / 256  # bytes per element of 8-bit state: torchao has an FP32 scale for each 256 elements
NOTABLE = 0.01  # of the peak: what saves less is not advised


@dataclass(frozen=True)
class Cure:
    """One change.

    Attributes:
        change: in words.
        saves: bytes.
        up_to: whether it may save less; otherwise the peak falls by about as much.
    """

    change: str
    saves: int
    up_to: bool = True

    def __str__(self) -> str:
        return f"{self.change}: saves {'up to ' if self.up_to else ''}{human_bytes(self.saves)}"


def cures_at(owners: Owners, unused: int, checkpoints: bool) -> list[Cure]:
    """Return the changes that save at least a hundredth of what is held at one moment, the easiest first.

    Args:
        owners: of that moment. More than its categories need not be known.
        unused: bytes that are reserved and not allocated.
        checkpoints: whether the program uses activation checkpointing already.
    """
    held = owners.categories
    state, gradients = held.get("optimizer state", 0), held.get("gradients", 0)
    saved = held.get("activations", 0) + held.get("recomputed activations", 0)
    cures = [
        Cure(EXPANDABLE, unused),
        Cure(f"{ACCUMULATED}, if the batch is more than one", saved // 2),
        Cure(CHECKPOINTING, 0 if checkpoints else int(saved * (1 - CHECKPOINTED))),
        Cure(EIGHT_BITS, int(state * (1 - EIGHT / 4))),
        Cure(IN_BACKWARD, gradients),
        Cure(LORA, state + gradients),
        Cure("weights in BF16 instead of FP32", held.get("parameters", 0) // 2),
    ]
    return notable(cures, owners.allocated)


def notable(cures: list[Cure], peak: int) -> list[Cure]:
    """Return the changes that save something worth their trouble."""
    return [cure for cure in cures if cure.saves > 0 and cure.saves >= peak * NOTABLE]
