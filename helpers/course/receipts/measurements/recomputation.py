"""What checkpointing each block of a GPT costs in time and saves in memory."""

import torch

from ....claims.claims import Claims
from ....meter.recorder import MemoryMeter
from ....meter.timing import compare
from ._subjects import Trainer, checkpointed, gpt


def measure(claims: Claims, device: torch.device) -> None:
    """Compare a step with and without, in turns; in FP32 and in BF16."""
    runs = 10 if device.type == "cuda" else 3
    for name, dtype in {"FP32": torch.float32, "BF16": torch.bfloat16}.items():
        subject = gpt(device)
        what = f"{subject.words}, {name}"
        keeps, recomputes = Trainer(subject, device, dtype), Trainer(subject, device, dtype, change=checkpointed)
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
