"""AdamW's three implementations: seconds of a step, and what it takes for a moment."""

import functools

import torch

from ....claims.claims import Claims
from ....meter.recorder import MemoryMeter
from ....meter.timing import benchmark
from ._subjects import Trainer, gpt

_WAYS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def measure(claims: Claims, device: torch.device) -> None:
    """Record time and temporaries of `optimizer.step()` alone."""
    subject = gpt(device)
    for name, way in _WAYS.items():
        trainer = Trainer(subject, device, optimizer=functools.partial(torch.optim.AdamW, **way))
        trainer.step()
        for p in trainer.model.parameters():
            p.grad = torch.randn_like(p)
        weights = sum(p.nbytes for p in trainer.model.parameters())
        with MemoryMeter(trainer.model, trainer.stepper) as meter:
            trainer.stepper.step()
        above = meter.at_peak["temporaries"] + meter.at_peak["kernel workspace"]
        claims.figure(
            "temporary memory of a step, relative to the weights", f"{subject.words}, {name}", above / weights, "x"
        )
        claims.figure("a step takes", f"{subject.words}, {name}", 1e3 * benchmark(trainer.stepper.step).median, "ms")
