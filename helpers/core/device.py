"""Which device this machine has, and which number formats it can compute in.

The course runs the same cells everywhere: on an NVIDIA GPU if there is one ("cuda"), else on Apple's
GPU ("mps"), else on the CPU. Whether a dtype is supported is found out by trying, because version tables go out of
date.
"""

import os
import platform
from pathlib import Path

import torch


def pick_device() -> torch.device:
    """Return the fastest device of this machine: cuda, else mps, else cpu."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def rank_device() -> torch.device:
    """Return the device of this rank: a GPU of its own if this machine has one for each of its ranks, else the CPU.

    It reads the environment variables that `torchrun` and `run_ranks` set.
    """
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_ranks:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cpu")


def device_name(device: torch.device) -> str:
    """Return the name a person would use for `device`, e.g. "NVIDIA H200" or "AMD EPYC"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"Apple {platform.machine()} GPU"
    cpuinfo = Path("/proc/cpuinfo")  # platform.processor() is empty on most Linux systems
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def supports(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether a small matrix product in `dtype` runs on `device`, at whatever speed."""
    try:
        a = torch.ones(16, 16, device=device).to(dtype)
        (a @ a).float().sum().item()
    except (RuntimeError, TypeError):  # TypeError: MPS refuses some dtypes in `to` already
        return False
    return True


def synchronize(device: torch.device) -> None:
    """Wait until `device` has finished its queued work. A CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
