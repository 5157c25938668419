"""Run a script on a pretended machine and remember which lines of the course it executed, in all its processes.

Subprocesses and ranks count too: each Python process that inherits the environment writes down its own lines (the
package `coverage` is started by this package's `sitecustomize`). Results are kept in build/, so that two tests that ask
for the same run share it.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from helpers.core.files import ROOT, atomic_write
from helpers.planner.catalog import find_gpu
from helpers.planner.catalog.rooflines import roofline_of
from helpers.virtual_gpu.machine import Machine
from helpers.virtual_gpu.process import SITE

import torch
from coverage import CoverageData
from coverage.exceptions import DataError
from filelock import FileLock

_HERE = Path(__file__).parent
_KEPT = ROOT / "build" / "pretence"
_SETTINGS = """[run]
include =
    {root}/helpers/*
    {root}/solutions/*
data_file = {folder}/data
parallel = true
# Ranks are forked from a server, and leave by os._exit.
patch =
    fork
    _exit
disable_warnings = no-data-collected, module-not-measured
"""


@dataclass(frozen=True)
class CountedRun:
    """What a script did.

    Attributes:
        returncode: of the process.
        output: what it printed, with its errors.
        lines: path from the checkout's root -> numbers of the lines that were executed, in any process.
    """

    returncode: int
    output: str
    lines: dict[str, list[int]]


def counted_run(name: str, command: list[str], limit: float = 900) -> CountedRun:
    """Return what `python COMMAND` does, from the checkout's root: from build/ if nothing has changed since it ran.

    Args:
        name: of the file in build/.
        limit: seconds until it is ended.
    """
    path, digest = _KEPT / f"{name}.json", _digest(command)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept.pop("digest") == digest:
                return CountedRun(**kept)
        run = _run(command, limit)
        atomic_write(path, json.dumps({"digest": digest, **asdict(run)}))
    return run


def _run(command: list[str], limit: float) -> CountedRun:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        settings = folder / "coveragerc"
        settings.write_text(_SETTINGS.format(root=ROOT, folder=folder), encoding="utf-8")
        paths = [str(SITE), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "COVERAGE_PROCESS_START": str(settings),
            "PYTHONPATH": os.pathsep.join(paths),
            "MPLBACKEND": "agg",
            "TAS_PROGRESS": str(_kept_rooflines(folder)),
        }
        with (folder / "output").open("w+", encoding="utf-8", errors="replace") as output:
            try:
                process = subprocess.run(
                    [sys.executable, *command], cwd=ROOT, env=environment, stdout=output, stderr=output, timeout=limit
                )
                returncode = process.returncode
            except subprocess.TimeoutExpired:
                returncode = 124
            output.seek(0)
            return CountedRun(returncode, output.read(), _lines(folder))


def _kept_rooflines(scratch: Path) -> Path:
    """Return a folder with rooflines of the pretended GPUs, by their data sheets: measuring takes a real one."""
    folder = scratch / "progress"
    folder.mkdir()
    rooflines = {}
    for gpu in ("h100", "t4"):
        name = f"{Machine.named(gpu).name}, PyTorch {torch.__version__}"
        rooflines[name] = json.loads(replace(roofline_of(find_gpu(gpu)), machine=name).to_json())
    (folder / "roofline.json").write_text(json.dumps(rooflines), encoding="utf-8")
    return folder


def _lines(folder: Path) -> dict[str, list[int]]:
    """Join what the processes wrote in `folder`."""
    lines: dict[str, set[int]] = {}
    for path in folder.glob("data.*"):
        data = CoverageData(str(path))
        with contextlib.suppress(DataError):  # half a file: its process was killed, or goes on and writes just now
            data.read()
            for file in data.measured_files():
                lines.setdefault(Path(file).relative_to(ROOT).as_posix(), set()).update(data.lines(file) or ())
    return {file: sorted(numbers) for file, numbers in sorted(lines.items())}


def _digest(command: list[str]) -> str:
    """Return what tells whether the run would be another one today."""
    hasher = hashlib.sha256(f"{command} {torch.__version__}".encode())
    named = [ROOT / word for word in command if word.endswith(".py")]
    for path in sorted([*named, *ROOT.glob("helpers/**/*.py"), *ROOT.glob("helpers/**/*.jinja"), *_HERE.rglob("*.py")]):
        hasher.update(path.read_bytes())
    return hasher.hexdigest()
