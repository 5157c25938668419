"""Whether torch.compile can work on this machine, and the kernels that it writes."""

import importlib.util
import os
import re
import shutil
from collections.abc import Callable

import torch

from .device import pick_device

if not torch.cuda.is_available():  # read when Triton is imported: its interpreter then runs kernels on the CPU
    os.environ.setdefault("TRITON_INTERPRET", "1")


def why_no_compiler() -> str | None:
    """Return what `torch.compile` lacks on this machine, in a few words; None if it lacks nothing.

    Kernels for a CPU need a C++ compiler; those for an NVIDIA GPU need Triton and a C compiler.
    """
    device = pick_device()
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    names = {"cpu": ("g++", "clang++", "cl"), "cuda": ("gcc", "clang", "cl")}.get(device.type, ())
    chosen = os.environ.get("CXX" if device.type == "cpu" else "CC")
    if names and not any(map(shutil.which, (chosen, *names) if chosen else names)):
        return f"there is no compiler ({', '.join(names)}) on the path"
    return None


def written_kernels(fn: Callable[..., object], *args: object) -> list[str]:
    """Compile `fn` (a plain function) anew, run it once, and return the source of the kernels made for it.

    C++ on a CPU, Triton on an NVIDIA GPU. Only the body of each kernel is returned, without its headers.
    """
    from torch._inductor.utils import run_and_get_code

    _, modules = run_and_get_code(torch.compile(fn), *args)
    text = "\n".join(modules)
    cpp = re.findall(r'extern "C".*?(?=\n\'\'\'|\n""")', text, re.DOTALL)
    return cpp or re.findall(r"^def triton_.*?(?=\n\'\'\')", text, re.DOTALL | re.MULTILINE)
