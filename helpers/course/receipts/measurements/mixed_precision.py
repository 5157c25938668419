"""Speed and peak memory of a CNN and a GPT in FP32, TF32, FP16 and BF16.

What the others are compared with is FP32 in products and in convolutions; left to itself, PyTorch computes the latter
in TF32.
"""

import math

import torch

from ....claims.claims import Claims
from ....core.precision import fp32_computed_as, has_tf32
from ....meter.recorder import MemoryMeter
from ....meter.timing import compare
from ._subjects import Trainer, cnn, gpt


def measure(claims: Claims, device: torch.device) -> None:
    """Compare each format with FP32, in turns; record speed, and the peaks of a step."""
    with fp32_computed_as("ieee"):  # by default, cuDNN computes FP32 convolutions in TF32
        _compare(claims, device)


def _compare(claims: Claims, device: torch.device) -> None:
    runs = 10 if device.type == "cuda" else 3
    for subject in (cnn(device), gpt(device)):
        plain = Trainer(subject, device)
        peak = _peak(plain)
        claims.figure("peak in FP32", subject.words, peak / 2**20, "MiB")
        for name, dtype in {"FP16": torch.float16, "BF16": torch.bfloat16}.items():
            low = Trainer(subject, device, dtype)
            what = f"{subject.words}, {name}"
            claims.record("C7", "2x less memory", f"{what}, peak", peak / _peak(low), "x", 1.8, 2.2)
            speed = compare(plain.step, low.step, runs=runs).speedup
            claims.record("C7", "2x faster", what, speed, "x", 1.8, math.inf)
        if has_tf32(device):
            claims.figure("TF32 faster than FP32 by", subject.words, _tf32(plain, runs), "x")


def _peak(trainer: Trainer) -> int:
    trainer.step()
    with MemoryMeter(trainer.model, trainer.stepper, by_category=False) as meter:
        trainer.step()
    return meter.peak_bytes


def _tf32(trainer: Trainer, runs: int) -> float:
    def step() -> None:
        with fp32_computed_as("tf32"):
            trainer.step()

    return compare(trainer.step, step, runs=runs).speedup
