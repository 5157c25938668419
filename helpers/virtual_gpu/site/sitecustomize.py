"""Python reads this first where the runner has put its folder on the path. The pretence begins when torch is there."""

import os
from typing import Any


def _install(torch: Any) -> None:
    from helpers.virtual_gpu.install import install
    from helpers.virtual_gpu.machine import Machine

    install(Machine.from_environment())


if os.environ.get("COVERAGE_PROCESS_START"):  # coverage_run.py counts the lines of all processes
    import coverage

    coverage.process_startup()
if os.environ.get("PRETENDED_MACHINE"):
    from helpers.virtual_gpu.after_import import AfterImport

    AfterImport("torch", _install)
