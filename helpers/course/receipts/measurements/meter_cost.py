"""What the memory meter itself costs."""

import time

import torch

from ....claims.claims import Claims
from ....meter.profile import MemoryProfile
from ....meter.recorder import MemoryMeter
from ....meter.timing import compare
from ._subjects import Trainer, gpt


def measure(claims: Claims, device: torch.device) -> None:
    """Record how much slower a step is under the meter, and on a GPU whether its peak is the allocator's."""
    subject = gpt(device)
    trainer = Trainer(subject, device)

    def metered(by_tenant: bool) -> MemoryProfile:
        with MemoryMeter(trainer.model, trainer.stepper, by_tenant=by_tenant) as profile:
            trainer.step()
        return profile

    for words, by_tenant in {"peak only": False, "by tenant": True}.items():
        slower = 1 / compare(trainer.step, lambda by_tenant=by_tenant: metered(by_tenant), runs=5).speedup
        claims.figure(f"a step under the meter, {words}, takes", subject.words, slower, "x")
    began = time.perf_counter()
    profile = metered(True)
    claims.figure("a step, measured and read, takes", subject.words, time.perf_counter() - began, "s")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        trainer.step()
        peak = torch.cuda.max_memory_allocated(device)
        claims.record(
            "meter", "the meter's peak is the allocator's", subject.words, profile.peak_bytes / peak, "", 0.999, 1.001
        )
