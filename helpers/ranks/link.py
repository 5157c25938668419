"""What messages between ranks cost: the alpha and the beta of this machine's process group."""

import statistics
import time

import torch
import torch.distributed as dist

from ..core.device import rank_device, synchronize
from ..meter.roofline.link import Link
from .run import run_ranks

MESSAGES = tuple(1024 * 4**exponent for exponent in range(9))  # bytes: 1 KiB to 64 MiB
_ROUNDS = 10  # of all sizes, so that a busy moment meets each size once


def measure_link() -> Link:
    """Measure all-reduces of 1 KiB to 64 MiB between two ranks: NCCL where there are two GPUs, else gloo.

    In a ring of N ranks, each sends 2 (N - 1) / N times the message; of two, the message once. So `bandwidth` is that
    of the link between them.

    Raises:
        RankError: the ranks could not be started.
    """
    sweeps = run_ranks(_sweep, 2, MESSAGES, measure=False, show=False).results
    slowest = [max(rank[i] for rank in sweeps) for i in range(len(MESSAGES))]  # the last to finish decides
    return Link.fitted(list(zip(MESSAGES, slowest, strict=True)))


def _sweep(messages: tuple[int, ...]) -> list[float]:
    """Return the median seconds of an all-reduce of each size, as one rank sees it."""
    device = rank_device()
    tensors = [torch.zeros(nbytes // 4, device=device) for nbytes in messages]
    rounds = [[_seconds(tensor, device) for tensor in tensors] for _ in range(_ROUNDS)]
    return [statistics.median(runs) for runs in zip(*rounds[1:], strict=True)]  # the first round makes connections


def _seconds(message: torch.Tensor, device: torch.device) -> float:
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(message)
    synchronize(device)
    return time.perf_counter() - began
