"""What checkpointing each block of a GPT costs in time and saves in memory."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ....claims.claims import Claims
from ....meter.recorder import MemoryMeter
from ....meter.timing import compare
from ._subjects import Trainer, gpt


class _Recomputed(nn.Module):
    """A block that keeps its input only."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


def _checkpointed(model: nn.Module) -> nn.Module:
    model.blocks = nn.Sequential(*map(_Recomputed, model.blocks))
    return model


def measure(claims: Claims, device: torch.device) -> None:
    """Compare a step with and without, in turns; in FP32 and in BF16."""
    runs = 10 if device.type == "cuda" else 3
    for name, dtype in {"FP32": torch.float32, "BF16": torch.bfloat16}.items():
        subject = gpt(device)
        what = f"{subject.words}, {name}"
        keeps, recomputes = Trainer(subject, device, dtype), Trainer(subject, device, dtype, change=_checkpointed)
        slower = 1 / compare(keeps.step, recomputes.step, runs=runs).speedup - 1
        claims.record("C9", "30 to 33 % slower", f"{what}, every block", 100 * slower, "%", 30, 33)
        peaks = []
        for trainer in (keeps, recomputes):
            with MemoryMeter(trainer.model, trainer.stepper) as meter:
                trainer.step()
            peaks.append((meter.peak_bytes, meter.largest["activations"]))
        (peak, activations), (less, fewer) = peaks
        claims.record("C9", "2 to 3x less memory", f"{what}, peak", peak / less, "x", 2, 3)
        saved = 100 * (1 - fewer / activations)
        claims.record("C9", "saves 40 to 50 % of the activations", what, saved, "%", 40, 50)
