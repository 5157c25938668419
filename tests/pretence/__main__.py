"""Run a script as on a machine with GPUs: `python -m tests.pretence --gpu h100 --gpus 1 SCRIPT [ARGUMENTS]`."""

import argparse
import os
import sys

from helpers.virtual_gpu.machine import Machine
from helpers.virtual_gpu.process import environment


def main() -> None:
    """Become a Python process that runs the script."""
    parser = argparse.ArgumentParser(prog="python -m tests.pretence", description=__doc__)
    parser.add_argument("--gpu", default="h100-80gb", help="a name of the planner's catalog, or apple")
    parser.add_argument("--gpus", type=int, default=1, help="how many of them")
    parser.add_argument("script", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    short = {"h100": "h100-80gb", "a100": "a100-80gb", "t4": "t4-16gb"}
    machine = Machine.named(short.get(options.gpu, options.gpu), options.gpus)
    os.execve(sys.executable, [sys.executable, *options.script], os.environ | environment(machine))


if __name__ == "__main__":
    main()
