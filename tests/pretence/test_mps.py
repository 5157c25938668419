"""Apple's GPU pretended: it refuses what Metal refuses, and every lab of one process runs on it."""

import os
import subprocess
import sys

from helpers.core.files import ROOT

import pytest

from tests.sampling import runs_whole, sample

from .settings import QUICK

_MANY = ("11_", "12_", "13_", "14_")  # their ranks run on the CPU on such a machine
SOURCES = [path for path in sorted((ROOT / "solutions").glob("[0-9]*.py")) if not path.name.startswith(_MANY)]
LABS = [path for path in SOURCES if runs_whole() or path.stem in QUICK]


def on_apple(script, limit):
    return subprocess.run(
        [sys.executable, "-m", "tests.pretence", "--gpu", "apple", str(script)],
        cwd=ROOT,
        env=os.environ | {"MPLBACKEND": "agg", "TAS_PROGRESS": "off"},
        capture_output=True,
        text=True,
        timeout=limit,
    )


@pytest.mark.slow
def test_the_machine_is_apples():
    run = on_apple("tests/pretence/mps_facts.py", 120)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-5000:]


@pytest.mark.slow
@pytest.mark.parametrize("path", sample(LABS, one_in=3 * len(LABS)), ids=lambda path: path.stem)
def test_a_lab_runs_on_apples_gpu(path):
    run = on_apple(path, 600)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-5000:]
