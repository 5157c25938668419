"""Run one hand-in under nbval, in a process of its own with limits on time."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import psutil

from .collect import HandIn, grading_notebook

START_UP = 90  # seconds for pytest and the kernel to start, beside what the cells may take


@dataclass
class CellRecord:
    """What one cell did: see plugin.py."""

    cell: str
    error: str | None
    timed_out: bool
    evidence: list[str]


@dataclass
class Run:
    """What became of a hand-in's cells.

    Attributes:
        finished: False when the run had to be killed or broke off.
        flags: what the run gave a human to look at.
    """

    records: dict[str, CellRecord]
    finished: bool
    flags: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def timed_out(self) -> bool:
        """Whether a cell, or the run as a whole, took too long."""
        return any(record.timed_out for record in self.records.values())


def run_hand_in(hand_in: HandIn, seed: int, timeout: float, threads: int) -> Run:
    """Run `hand_in` with the inputs of `seed`, PyTorch using `threads` threads.

    A cell may take `timeout` seconds; after the first that takes longer the rest are not run.
    """
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        notebook, evidence = folder / "hand_in.ipynb", folder / "evidence.jsonl"
        content = grading_notebook(hand_in, seed)
        notebook.write_text(nbformat.writes(content), encoding="utf-8", errors="backslashreplace")
        command = [
            *(sys.executable, "-m", "pytest", str(notebook), f"--rootdir={folder}", f"--evidence={evidence}"),
            *("-p", "helpers.course.grade.plugin", "-p", "no:cacheprovider", "-q", "--tb=line"),
            *("--nbval-lax", f"--nbval-cell-timeout={timeout:g}", f"--nbval-kernel-startup-timeout={START_UP}"),
        ]
        wall = START_UP + timeout * len(content.cells)
        finished = _run(command, folder, wall, threads)
        lines = evidence.read_text(encoding="utf-8").splitlines() if evidence.exists() else []
        records = [CellRecord(**json.loads(line)) for line in lines]
    complete = finished and len(records) == len(content.cells)
    return Run({record.cell: record for record in records}, complete, seconds=time.perf_counter() - began)


def _run(command: list[str], folder: Path, wall: float, threads: int) -> bool:
    """Run `command` in `folder` for at most `wall` seconds; say whether it came to its end."""
    # Threads that outnumber the cores wait for each other spinning, and everything takes many times longer.
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        return process.wait(wall) in (0, 1)  # 1: some cells failed, which is for the judge to say
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            parent = psutil.Process(process.pid)
            tree = [*parent.children(recursive=True), parent]
            for member in tree:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            psutil.wait_procs(tree, timeout=10)
            process.wait()
