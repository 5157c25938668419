"""The environment of a Python process that has virtual GPUs from its start, and so have the processes it starts."""

import os
from pathlib import Path

from .machine import Machine

SITE = Path(__file__).resolve().parent / "site"


def environment(machine: Machine) -> dict[str, str]:
    """Return the variables under which every Python process runs on `machine`."""
    path = [str(SITE), str(SITE.parents[2]), os.environ.get("PYTHONPATH", "")]
    return machine.environment() | {"PYTHONPATH": os.pathsep.join(part for part in path if part)}
