"""Copies from the host's memory to the GPU, pageable and pinned."""

import time

import torch

from ....claims.claims import Claims
from ....meter.timing import compare
from ..steps import Skip


def measure(claims: Claims, device: torch.device) -> None:
    """Record the speed of pinned copies against pageable ones, and how soon a non-blocking call comes back."""
    if device.type != "cuda":
        raise Skip("copies from pinned memory need a CUDA GPU")
    for size in (1, 16, 256):
        pageable = torch.empty(size * 2**20, dtype=torch.uint8)
        pinned = pageable.pin_memory()
        faster = compare(
            lambda host=pageable: host.to(device), lambda host=pinned: host.to(device, non_blocking=True), runs=20
        ).speedup
        claims.record("C10", "pinned memory: copies 2 to 3x faster", f"{size} MiB to the GPU", faster, "x", 2, 3)
        began = time.perf_counter()
        copy = pinned.to(device, non_blocking=True)
        back = time.perf_counter() - began
        torch.cuda.synchronize(device)
        share = back / (time.perf_counter() - began)
        del copy
        claims.record(
            "C10", "and asynchronous: share of the copy before the call is back", f"{size} MiB", share, "", 0, 0.5
        )
