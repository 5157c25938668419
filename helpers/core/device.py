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


def ranks_device(ranks: int) -> torch.device:
    """Return where `ranks` ranks of this machine run: on GPUs if there is one for each, else all on the CPU.

    A table that compares 1, 2 and 4 ranks runs all of them on `ranks_device(4)`; else it would compare devices.
    """
    enough = torch.cuda.is_available() and torch.cuda.device_count() >= ranks
    return torch.device("cuda" if enough else "cpu")


def rank_device() -> torch.device:
    """Return the device of this rank: a GPU of its own if this machine has one for each of its ranks, else the CPU.

    It reads the environment variables that `torchrun` and `run_ranks` set.
    """
    kind = ranks_device(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if kind.type == "cuda" else kind


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
    """Return whether `device` computes matrix products in `dtype`: a small one runs, and no GPU emulates it.

    GPUs of a compute capability below 8.0, such as the T4, have no units for BF16. PyTorch runs BF16 products there all
    the same, by way of FP32. A CPU may have to convert, too, but then it has no faster 16-bit format to offer instead.
    """
    if dtype == torch.bfloat16 and device.type == "cuda":
        with torch.cuda.device(device):
            if not torch.cuda.is_bf16_supported(including_emulation=False):
                return False
    try:
        a = torch.ones(16, 16, device=device).to(dtype)
        (a @ a).float().sum().item()
    except (RuntimeError, TypeError):  # TypeError: MPS refuses some dtypes in `to` already
        return False
    return True


def sixteen_bit_dtype(device: torch.device) -> torch.dtype:
    """Return the 16-bit dtype to train in on `device`: BF16 if it computes in that, else FP16."""
    return torch.bfloat16 if supports(torch.bfloat16, device) else torch.float16


def numbers_beyond_cache(device: torch.device) -> int:
    """Return how many FP32 numbers make a tensor that the GPU's cache cannot hold: a power of two.

    What one kernel has written the next one finds in the GPU's L2 cache, if it fits. In a tensor of eight times the L2,
    at most an eighth can be there. A CPU does not tell the size of its cache; its tensors have 32 MiB.
    """
    cpu = 2**23
    if device.type != "cuda":
        return cpu
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    return max(cpu, 1 << (8 * l2_bytes // 4 - 1).bit_length())


def synchronize(device: torch.device) -> None:
    """Wait until `device` has finished its queued work. A CPU has no queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
