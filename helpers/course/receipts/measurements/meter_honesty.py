"""The meter's peak against CUDA's own count, `torch.cuda.max_memory_allocated`, for several models and recipes."""

import functools
from collections.abc import Iterator

import torch

from ....claims.claims import Claims
from ....meter.recorder import MemoryMeter
from ..steps import Skip
from ._subjects import Trainer, checkpointed, cnn, gpt

_SAID = "the meter's peak is the allocator's"


def measure(claims: Claims, device: torch.device) -> None:
    """Record measured / counted peak of a step: by category, and of the peak alone."""
    if device.type != "cuda":
        raise Skip("the meter is compared with CUDA's own statistics, and this device is not a CUDA GPU")
    for words, trainer in _trainers(device):
        trainer.step()  # the optimizer's state appears
        for by_category in (True, False):
            torch.cuda.reset_peak_memory_stats(device)
            with MemoryMeter(trainer.model, trainer.stepper, device, by_category=by_category) as profile:
                trainer.step()
            counted = torch.cuda.max_memory_allocated(device)
            subject = words if by_category else f"{words}, peak only"
            # Not of the meter's concern, but of the allocator's: the batch and the libraries' workspaces.
            ratio = (profile.peak_bytes + profile.outside_bytes) / counted
            claims.record("meter", _SAID, subject, ratio, "", 0.999, 1.001)


def _trainers(device: torch.device) -> Iterator[tuple[str, Trainer]]:
    """Yield what is measured, one at a time: each keeps its memory as long as it lives."""
    low = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    for subject in (cnn(device), gpt(device)):
        yield f"{subject.words}, FP32", Trainer(subject, device)
        yield f"{subject.words}, 16 bits", Trainer(subject, device, low)
        fused = functools.partial(torch.optim.AdamW, fused=True)
        yield f"{subject.words}, 16 bits, fused", Trainer(subject, device, low, fused)
        plain = functools.partial(torch.optim.SGD, foreach=False)
        yield f"{subject.words}, FP32, SGD", Trainer(subject, device, optimizer=plain)
    yield f"{subject.words}, 16 bits, checkpointed", Trainer(subject, device, low, change=checkpointed)
