"""A GPT compiled: speed of a step, seconds of the compilation, peak."""

import time

import torch

from ....claims.claims import Claims
from ....core.compiler import why_no_compiler
from ....meter.timing import compare
from ..steps import Skip
from ._subjects import Trainer, gpt


def measure(claims: Claims, device: torch.device) -> None:
    """Compare a step in BF16 with and without `torch.compile`."""
    if why_no_compiler():
        raise Skip(why_no_compiler())
    subject = gpt(device)
    eager = Trainer(subject, device, torch.bfloat16)
    compiled = Trainer(subject, device, torch.bfloat16, change=torch.compile)
    began = time.perf_counter()
    compiled.step()
    claims.figure("compiling and the first step take", subject.words, time.perf_counter() - began, "s")
    speed = compare(eager.step, compiled.step, runs=10 if device.type == "cuda" else 3).speedup
    claims.figure("compiled, faster by", subject.words, speed, "x")
    if device.type == "cuda":  # on a CPU the meter runs compiled models uncompiled
        peaks = []
        for trainer in (eager, compiled):
            torch.cuda.reset_peak_memory_stats(device)
            trainer.step()
            peaks.append(torch.cuda.max_memory_allocated(device))
        claims.figure("compiled, peak against eager", subject.words, peaks[1] / peaks[0], "x")
