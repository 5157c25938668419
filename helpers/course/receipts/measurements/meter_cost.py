"""What the memory meter itself costs."""

import time

import torch

from ....claims.claims import Claims
from ....meter.recorder import MemoryMeter
from ....meter.timing import compare
from ._subjects import Trainer, gpt


def measure(claims: Claims, device: torch.device) -> None:
    """Record how much slower a step is under the meter."""
    subject = gpt(device)
    trainer = Trainer(subject, device)

    def metered(by_category: bool) -> None:
        with MemoryMeter(trainer.model, trainer.stepper, by_category=by_category):
            trainer.step()

    for words, by_category in {"peak only": False, "by category": True}.items():
        slower = 1 / compare(trainer.step, lambda by_category=by_category: metered(by_category), runs=5).speedup
        claims.figure(f"a step under the meter, {words}, takes", subject.words, slower, "x")
    began = time.perf_counter()
    metered(True)
    claims.figure("a step, measured and read, takes", subject.words, time.perf_counter() - began, "s")
