"""Run one submission under nbval, in a process of its own with limits on time."""

import contextlib
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil

from ....core.descendants import end_descendants, end_process
from ....core.fresh_process import start_process
from ...kernel.processes import adopt_orphans, die_with_parent
from ..intake.hand_in import HandIn, grading_notebook
from .job import Job
from .warm import WarmServers

START_UP = 90  # seconds for the kernel to start, on top of what the cells may take
# What the fork server imports once for all submissions.
PRELOADED = [__name__, "pytest", "nbval.plugin", "jupyter_client", "zmq", "nbformat.v4", f"{__package__}.plugin"]


@dataclass(frozen=True)
class CellRecord:
    """What one cell did: see plugin.py."""

    cell: str
    error: str | None
    timed_out: bool
    reports: list[str]


@dataclass(frozen=True)
class Run:
    """What became of a submission's cells.

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


def run_hand_in(hand_in: HandIn, seed: int, timeout: float, servers: WarmServers) -> Run:
    """Run `hand_in` with the inputs of `seed`.

    A cell may take `timeout` seconds; after the first that takes longer the rest are not run.
    """
    with tempfile.TemporaryDirectory(prefix="grade-", ignore_cleanup_errors=True) as scratch:
        job = Job(Path(scratch).resolve(), hand_in.source.exercise, timeout, servers.sandbox)
        job.kernel.mkdir()
        notebook = grading_notebook(hand_in, seed)
        (job.folder / "hand_in.ipynb").write_text(
            nbformat.writes(notebook), encoding="utf-8", errors="backslashreplace"
        )
        with servers.doorkeeper(job.exercise, seed, job.door) as doorkeeper:
            began = time.perf_counter()  # the imports, which the first run of an exercise waits for, are done
            finished = _run_in_process(job, doorkeeper, START_UP + timeout * len(notebook.cells))
        records = _read_records(job.records)
    return Run(records, finished and len(records) == len(notebook.cells), time.perf_counter() - began)


def _read_records(path: Path) -> dict[str, CellRecord]:
    """Return the records of all cells that were run, by the cell's id."""
    records = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):  # the last one, if the run was killed while it wrote
            record = CellRecord(**json.loads(line))
            records[record.cell] = record
    return records


def _run_in_process(job: Job, doorkeeper: int | None, wall: float) -> bool:
    """Run nbval for at most `wall` seconds; say whether it came to its end. Nothing that it started goes on."""
    process = start_process(_run_nbval, (job, doorkeeper), PRELOADED, "submission")
    try:
        process.join(wall)
        return process.exitcode in (0, 1)  # 1: some cells failed, which is for the judge to say
    finally:
        end_process(process.pid)  # it has adopted the orphans
        process.join(10)


def _run_nbval(job: Job, doorkeeper: int | None) -> None:
    """Run the notebook in the job's folder. This is all the process does: it ends with pytest's exit code."""
    if hasattr(os, "setsid"):
        os.setsid()  # an interrupt in the terminal is for the grader, which then ends this process
    die_with_parent()
    adopt_orphans()
    os.chdir(job.folder)
    with open(os.devnull, "r+") as nowhere:
        for stream in (0, 1, 2):
            os.dup2(nowhere.fileno(), stream)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins that happen to be installed cost as much as the rest
    import pytest

    from .plugin import GradingPlugin

    arguments = [
        *("hand_in.ipynb", f"--rootdir={job.folder}", "-q", "--tb=line"),
        *("-p", "no:cacheprovider", "-p", "nbval.plugin"),
        *("--nbval-lax", f"--nbval-cell-timeout={job.timeout:g}", f"--nbval-kernel-startup-timeout={START_UP}"),
    ]
    code = pytest.main(arguments, plugins=[GradingPlugin(job, doorkeeper)])
    end_descendants(psutil.Process())  # without a sandbox they outlive the kernel; adopted, they can still be found
    os._exit(code)
