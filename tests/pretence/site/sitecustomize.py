"""Python reads this first where the runner has put its folder on the path. The pretence begins when torch is there."""

import os
from typing import Any


def _install(torch: Any) -> None:
    from tests.pretence.install import install
    from tests.pretence.machine import Machine

    install(Machine.from_environment())


if os.environ.get("COVERAGE_PROCESS_START"):  # coverage_run.py counts the lines of all processes
    import coverage

    coverage.process_startup()
if os.environ.get("PRETENDED_MACHINE"):
    from tests.pretence.after_import import AfterImport

    AfterImport("torch", _install)
