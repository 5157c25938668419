"""parallel_map: results in order, errors as they were raised, and no process left behind by an interrupt."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from helpers import MemoryMeter, parallel_map
from helpers.course.build.run_notebook import run_notebook

import nbformat
import psutil
import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
# Rarely, under load, loky's resource tracker tells of a semaphore that is gone when it looks for it.
LEAKED = re.compile(r"\S*/resource_tracker\.py:\d+: UserWarning: .*\n +warnings\.warn\(.*\n")


def test_two_processes_share_a_list_and_neither_waits(tmp_path):
    def work(item):
        if item:
            (tmp_path / str(item)).touch()
        for _ in range(600):
            if item or len(list(tmp_path.iterdir())) == 6:
                return item * item
            time.sleep(0.1)
        raise TimeoutError("the other process did not take the rest of the list")

    assert parallel_map(work, range(7)) == [n * n for n in range(7)]
    assert parallel_map(work, []) == []


def test_an_error_is_the_one_that_was_raised():
    def work(item):
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        parallel_map(work, [0])


def test_an_item_that_takes_too_long_is_an_error():
    with pytest.raises(TimeoutError, match=r"more than 0\.5 s"):
        parallel_map(time.sleep, [600, 600], timeout=0.5)


def test_cores_are_shared():
    def threads(_):
        return torch.get_num_threads()

    assert parallel_map(threads, range(2)) == [max(1, torch.get_num_threads() // 2)] * 2


def test_a_process_that_has_grown_is_replaced_without_a_warning(recwarn):
    def grow(seconds):
        # With each item by more than joblib lets a process grow over what its first item left.
        parallel_map.kept = getattr(parallel_map, "kept", b"") + b"x" * (320 * 2**20)
        time.sleep(seconds)
        return os.getpid()

    processes = parallel_map(grow, [0.1, 0.1, *([1.2] * 4)])
    assert len(set(processes)) > 2
    assert [str(w.message) for w in recwarn if "worker stopped" in str(w.message).lower()] == []


def test_a_meter_comes_back_with_its_figures_and_without_its_model():
    def measured(width):
        model = nn.Linear(width, width)
        with MemoryMeter(model) as meter:
            model(torch.ones(2, width)).sum().backward()
        return meter

    (meter,) = parallel_map(measured, [64])
    assert meter.at_peak["parameters"] == 4 * 64 * 65
    assert sum(meter.at_peak.values()) == meter.peak_bytes
    assert not any(isinstance(value, nn.Module) for value in vars(meter).values())


def script(tmp_path: Path, body: str) -> subprocess.Popen:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(body))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_WAIT_POLICY": "ACTIVE"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, str(path)], text=True, env=environment, **pipes)


@pytest.mark.slow
def test_a_plain_script_needs_no_guard_and_its_names_travel(tmp_path):
    process = script(
        tmp_path,
        """
        from dataclasses import dataclass

        from helpers import parallel_map

        import numpy as np
        import torch

        print("started")  # once: the processes must not run the script again
        model, offsets = torch.nn.Linear(2, 2), np.zeros(10**6)

        @dataclass(frozen=True)
        class Job:
            factor: float

        def work(job):
            offsets[0] = 1  # a copy of its own
            return job, model(torch.full((1, 2), job.factor))

        jobs = [Job(1.0), Job(2.0)]
        for job, (same, y) in zip(jobs, parallel_map(work, jobs), strict=True):
            assert job == same
            assert torch.equal(y, model(torch.full((1, 2), job.factor)))
        assert offsets[0] == 0
        """,
    )
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (0, "started\n", "")


@pytest.mark.slow
def test_in_a_notebook_functions_of_cells_use_its_names_and_nothing_else_is_shown(tmp_path):
    cells = [
        "import torch\nfrom helpers import parallel_map\nmodel = torch.nn.Linear(1, 1)",
        "def work(x):\n    return model(torch.tensor([x])).item()",
        "xs = [3.0, 2.0, 1.0]\nparallel_map(work, xs) == [work(x) for x in xs]",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    run_notebook(notebook, tmp_path)
    (output,) = (output for cell in notebook.cells for output in cell.outputs)
    assert output["data"]["text/plain"] == "True"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_ends_the_processes(tmp_path):
    process = script(
        tmp_path,
        f"""
        import os, pathlib, signal, time

        from helpers import parallel_map

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background passes on "ignore"

        def work(item):
            pathlib.Path({str(tmp_path)!r}, f"{{os.getpid()}}.pid").touch()
            time.sleep(600)

        try:
            parallel_map(work, range(2))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            input()  # it ends only after the test has seen its processes gone
        """,
    )

    def workers():
        return [int(path.stem) for path in tmp_path.glob("*.pid")]

    def alive(pid):
        return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE

    def wait_for(condition):
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.1)

    try:
        wait_for(lambda: len(workers()) == 2)
        for pid in [*workers(), process.pid]:  # as Jupyter and a terminal do: the whole group gets it
            os.kill(pid, signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        wait_for(lambda: not any(alive(pid) for pid in workers()))
        out, err = process.communicate("\n", timeout=120)
        assert (out, LEAKED.sub("", err)) == ("", "")
    finally:
        process.kill()
        process.wait()
