"""Run a command that may fail, hang or leave processes behind, and come back in time."""

import contextlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from .descendants import end_process
from .files import ROOT

_DYING = 30  # seconds that a killed process gets; one that is stuck in a driver may take longer, and is left


def run_limited(
    command: Sequence[str], environment: Mapping[str, str], limit: float, output: IO | int | None
) -> int | None:
    """Run `command` at the root of the checkout; when its time is up, or at an interrupt, end it with all it started.

    Args:
        command: the program and its arguments.
        environment: all its environment variables.
        limit: seconds.
        output: where both its streams go, as `subprocess.Popen` takes it; None: where this process's own go.

    Returns:
        its exit code; None if it was still running after `limit` seconds.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            end_process(process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DYING)
