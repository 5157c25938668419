"""Run a script as on a machine with GPUs: `python -m tests.pretence --gpu h100 --gpus 1 SCRIPT [ARGUMENTS]`."""

import argparse
import os
import sys
from pathlib import Path

from .machine import Machine

_HERE = Path(__file__).resolve().parent


def environment(machine: Machine) -> dict[str, str]:
    """Return the variables under which every Python process pretends to run on `machine`."""
    path = [str(_HERE / "site"), str(_HERE.parents[1]), os.environ.get("PYTHONPATH", "")]
    return machine.environment() | {"PYTHONPATH": os.pathsep.join(part for part in path if part)}


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
