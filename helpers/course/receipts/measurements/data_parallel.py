"""DistributedDataParallel on all GPUs of the machine."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ....claims.claims import Claims
from ....core.device import rank_device, ranks_device
from ....meter.recorder import MemoryMeter
from ....meter.timing import benchmark
from ....ranks.run import run_ranks
from ..steps import Skip
from ._subjects import Trainer, gpt


def measure(claims: Claims, device: torch.device) -> None:
    """Record speed and peak of a rank on N GPUs against one."""
    ranks = torch.cuda.device_count() if device.type == "cuda" else 2
    if device.type == "cuda" and ranks < 2:
        raise Skip("data parallel training needs two GPUs or more; this machine has one")
    on = ranks_device(ranks)
    runs = [run_ranks(_train, n, device=on, timeout=300, measure=False, show=False) for n in (1, ranks)]
    alone, together = (run.results[0] for run in runs)
    subject = f"{gpt(device).words} a rank, {ranks} ranks"
    speed = ranks * alone[0] / together[0]
    claims.record("C13", "speed about Nx", f"{subject}, share of N", speed / ranks, "", 0.85, 1.05)
    claims.figure("peak of a rank against one alone", subject, together[1] / alone[1], "x")


def _train() -> tuple[float, int]:
    """Return seconds a step and the peak in bytes of this rank."""
    device = rank_device()
    wrap = DistributedDataParallel if dist.get_world_size() > 1 else None
    trainer = Trainer(gpt(device), device, torch.bfloat16, change=wrap)
    seconds = benchmark(trainer.step, runs=10 if device.type == "cuda" else 3).median
    with MemoryMeter(trainer.model, trainer.stepper, device, by_category=False) as meter:
        trainer.step()
    return seconds, meter.peak_bytes + meter.outside_bytes  # DDP's buckets are older than the step
