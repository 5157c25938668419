"""Run one hand-in under nbval, in a process of its own with limits on time."""

import contextlib
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import psutil

from ....core.fresh_process import start_process
from ...kernel.processes import adopt_orphans, die_with_parent
from ..intake.hand_in import HandIn, grading_notebook
from .descendants import end_descendants
from .sandbox import Sandbox

START_UP = 90  # seconds for the kernel to start, beside what the cells may take
# What the server of processes imports once for all hand-ins.
PRELOADED = [__name__, "pytest", "nbval.plugin", "jupyter_client", "zmq", "nbformat.v4", f"{__package__}.plugin"]


@dataclass
class CellRecord:
    """What one cell did: see plugin.py."""

    cell: str
    error: str | None
    timed_out: bool
    reports: list[str]


@dataclass
class Run:
    """What became of a hand-in's cells.

    Attributes:
        finished: False when the run had to be killed or broke off.
        seconds: how long it took.
    """

    records: dict[str, CellRecord]
    finished: bool
    seconds: float = 0.0

    @property
    def timed_out(self) -> bool:
        """Whether a cell, or the run as a whole, took too long."""
        return any(record.timed_out for record in self.records.values())


def run_hand_in(hand_in: HandIn, seed: int, timeout: float, sandbox: Sandbox) -> Run:
    """Run `hand_in` with the inputs of `seed`.

    A cell may take `timeout` seconds; after the first that takes longer the rest are not run.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch).resolve()
        kernel, records = folder / "k", folder / "records.jsonl"
        kernel.mkdir()
        content = grading_notebook(hand_in, seed)
        (folder / "hand_in.ipynb").write_text(nbformat.writes(content), encoding="utf-8", errors="backslashreplace")
        wall = START_UP + timeout * len(content.cells)
        finished = _in_a_process(_run_nbval, wall, folder, hand_in.source.exercise, kernel, records, timeout, sandbox)
        lines = records.read_text(encoding="utf-8").splitlines() if records.exists() else []
    found = {}
    for line in lines:
        with contextlib.suppress(ValueError):  # the last one, if the run was killed while it wrote
            record = CellRecord(**json.loads(line))
            found[record.cell] = record
    return Run(found, finished and len(found) == len(content.cells), time.perf_counter() - began)


def _run_nbval(folder: Path, exercise: str, kernel: Path, records: Path, timeout: float, sandbox: Sandbox) -> None:
    """Run the notebook in `folder`. The whole of a process: it ends with pytest's exit code."""
    if hasattr(os, "setsid"):
        os.setsid()  # an interrupt in the terminal is for the grader, which then ends this process
    die_with_parent()
    adopt_orphans()
    os.chdir(folder)
    with open(os.devnull, "r+") as nowhere:
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)
    import pytest

    from .plugin import GradingPlugin

    arguments = [
        *("hand_in.ipynb", f"--rootdir={folder}", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--tb=line"),
        *("--nbval-lax", f"--nbval-cell-timeout={timeout:g}", f"--nbval-kernel-startup-timeout={START_UP}"),
    ]
    code = pytest.main(arguments, plugins=[GradingPlugin(sandbox, exercise, kernel, records)])
    end_descendants(psutil.Process())  # without a sandbox they outlive the kernel; adopted, they can still be found
    os._exit(code)


def _in_a_process(target: Any, wall: float, *args: Any) -> bool:
    """Run `target` for at most `wall` seconds; say whether it came to its end. Nothing of it goes on afterwards."""
    process = start_process(target, args, PRELOADED, "hand-in")
    try:
        process.join(wall)
        return process.exitcode in (0, 1)  # 1: some cells failed, which is for the judge to say
    finally:
        _end(process.pid)
        process.join(10)


def _end(pid: int) -> None:
    """Kill a process and all that descends from it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        root.suspend()  # so that it starts no others; it has adopted the orphans
        end_descendants(root)
        root.kill()
