"""What this machine is, what it can do, what is missing, and how to get it: python -m helpers doctor."""

import argparse
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import psutil
import torch
from rich.console import Console
from rich.table import Table

from .claims.status import status
from .core import environment
from .core.device import device_name, pick_device, supports
from .core.real_model import INSTALL, find_real_model
from .core.units import human_bytes, human_flops
from .meter.recorder import MemoryMeter
from .meter.roofline.kept import kept_roofline

FORMATS = {
    "FP32": torch.float32,
    "BF16": torch.bfloat16,
    "FP16": torch.float16,
    "FP8 E4M3": torch.float8_e4m3fn,
    "FP8 E5M2": torch.float8_e5m2,
}
PACKAGES = {
    "torch": "everything",
    "matplotlib": "figures",
    "scikit-learn": "the handwritten digits",
    "jupyterlab": "opening the labs",
    "ipywidgets": "interactive figures",
    "transformers": "Hugging Face models",
    "peft": "LoRA",
    "nbval": "grading",
}
# Run in a new process: `import helpers` prepares for PyTorch and imports nothing; a lab's set-up cell names more.
_IMPORTS = """
import helpers, time
start = time.perf_counter()
import torch
middle = time.perf_counter()
from helpers import MemoryMeter, SmallGPT, check, digits, pick_device, run_ranks
print(middle - start, time.perf_counter() - middle)
"""


def import_seconds() -> tuple[float, float]:
    """Return the seconds that a new process takes to import PyTorch, and then the helpers of a lab."""
    done = subprocess.run([sys.executable, "-c", _IMPORTS], stdout=subprocess.PIPE, text=True, check=True)
    torch_seconds, ours = map(float, done.stdout.split())
    return torch_seconds, ours


def device_memory(device: torch.device) -> tuple[int, int]:
    """Return (free, total) bytes of the memory that `device` uses."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)
    memory = psutil.virtual_memory()  # an Apple GPU shares the machine's memory
    return memory.available, memory.total


def _machine() -> Table:
    device = pick_device()
    free, total = device_memory(device)
    with MemoryMeter() as profile:
        torch.ones(1000, device=device).add(1)
    table = Table(show_header=False, title="This machine", title_justify="left")
    table.add_row("device", f"{device_name(device)} ({device.type})")
    if torch.cuda.device_count() > 1:
        table.add_row("GPUs", str(torch.cuda.device_count()))
    table.add_row("memory", f"{human_bytes(free)} free of {human_bytes(total)}")
    table.add_row("CPU", f"{device_name(torch.device('cpu'))}, {os.cpu_count()} cores")
    table.add_row("system", f"{platform.system()} {platform.release()}, Python {platform.python_version()}")
    table.add_row("computes in", ", ".join(name for name, dtype in FORMATS.items() if supports(dtype, device)))
    table.add_row("cannot compute in", ", ".join(n for n, d in FORMATS.items() if not supports(d, device)) or "-")
    table.add_row("idle threads", environment.idle_threads())
    torch_seconds, ours = import_seconds()
    table.add_row("imports", f"PyTorch {torch_seconds:.1f} s, the helpers of a lab {ours:.1f} s more")
    table.add_row("roofline", _roofline(device))
    table.add_row("pretrained model", find_real_model() or f"none; for the lab on adapters (93 MB): {INSTALL}")
    table.add_row(
        "memory meter", "counts every byte of the allocator" if profile.method == "allocator" else "counts tensors only"
    )
    return table


def _roofline(device: torch.device) -> str:
    """Say what was measured here, or how to measure it."""
    roofline = kept_roofline(device)
    if roofline is None:
        return "not measured yet: python -m helpers roofline"
    peaks = ", ".join(f"{dtype} {human_flops(roofline.peak(dtype))}" for dtype in roofline.dtypes)
    return f"{peaks}; measured on {roofline.date}"


def _packages() -> tuple[Table, list[str]]:
    table = Table("package", "version", "for", title="Packages", title_justify="left")
    missing = []
    for name, purpose in PACKAGES.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            installed = "missing"
            missing.append(name)
        table.add_row(name, installed, purpose)
    return table, missing


def examine() -> int:
    """Print the report. Returns 0 if everything that the labs need is installed, else 1."""
    console = Console()
    with Console(stderr=True).status("Looking at this machine"):
        machine = _machine()
    console.print(machine)
    packages, missing = _packages()
    console.print(packages)
    if missing:
        console.print(f"Missing: {', '.join(missing)}. Install them with: python -m pip install {' '.join(missing)}")
        return 1
    console.print("Everything the labs need is installed.\n")
    status()
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def run(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit code of `examine`."""
    return examine()
