"""A script that starts workers without a guard."""

import subprocess
import sys

import pytest

SCRIPT = """
from helpers import PickledByValue, script_as_notebook
from torch.utils.data import DataLoader
print("once")
script_as_notebook()
loader = DataLoader(PickledByValue([1, 2, 3, 4]), 2, num_workers=1, multiprocessing_context="spawn")
print([batch.tolist() for batch in loader])
"""


@pytest.mark.slow
def test_a_script_without_a_guard_starts_workers_and_runs_once(tmp_path):
    path = tmp_path / "lab.py"
    path.write_text(SCRIPT)
    run = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert run.stdout.splitlines() == ["once", "[[1, 2], [3, 4]]"]
    assert run.stderr == ""
