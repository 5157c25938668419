"""Python reads this first where the runner has put its folder on the path. The pretence begins when torch is there."""

import os
import sys
from typing import Any


def _install(torch: Any) -> None:
    # A module of the course that is importing torch is half there, and the pretence may need all of it. So such modules
    # are imported anew: Python takes what it finds in their place when the first import ends.
    modules = [item for item in sys.modules.items() if item[0].startswith("helpers.")]
    halves = {name: module for name, module in modules if getattr(module.__spec__, "_initializing", False)}
    for name in halves:
        del sys.modules[name]
    from helpers.virtual_gpu.install import install
    from helpers.virtual_gpu.machine import Machine

    install(Machine.from_environment())
    sys.modules.update({name: module for name, module in halves.items() if name not in sys.modules})


if os.environ.get("COVERAGE_PROCESS_START"):  # coverage_run.py counts the lines of all processes
    import coverage

    coverage.process_startup()
if os.environ.get("PRETENDED_MACHINE"):
    from helpers.virtual_gpu.after_import import AfterImport

    AfterImport("torch", _install)
