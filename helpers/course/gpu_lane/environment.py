"""The first step: what this machine is, whether its GPU computes, and which packages it lacks.

python -m helpers.course.gpu_lane.environment DEVICE
"""

import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

from ...core.compiler import why_no_compiler
from ...core.device import device_name, supports
from .packages import NEEDED, missing_packages

FORMATS = (torch.float32, torch.bfloat16, torch.float16)


def main(device: torch.device) -> int:
    """Print the report. Returns 0 if the device computes and nothing is missing that the lane needs, else 1."""
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPU cores, {device_name(torch.device('cpu'))}")
    print(torch.__config__.show())
    if device.type == "cuda":
        _print_gpus()
    for dtype in FORMATS:
        print(f"{dtype}: {'computes' if supports(dtype, device) else 'does not compute'}")
    print(f"torch.compile: {why_no_compiler() or 'finds what it needs'}")
    for name in (*NEEDED, "bitsandbytes", "torchao", "triton"):
        print(f"{name} {_version(name)}")
    product = torch.ones(256, 256, device=device) @ torch.ones(256, 256, device=device)
    if not bool((product == 256).all()):
        print(f"{device_name(device)} computes matmuls incorrectly")
        return 1
    missing = missing_packages()
    print(f"missing: {', '.join(missing)}; see make gpu-wheels" if missing else f"{device_name(device)} is ready")
    return 1 if missing else 0


def _print_gpus() -> None:
    for index in range(torch.cuda.device_count()):
        print(torch.cuda.get_device_properties(index))
    print(f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")
    if program := shutil.which("nvidia-smi"):
        subprocess.run([program], check=False, timeout=60, stderr=subprocess.STDOUT)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "is not installed"


if __name__ == "__main__":
    sys.exit(main(torch.device(sys.argv[1])))
