"""The pretended GPU finds planted mistakes, and lets the right programs pass."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .planted import MACHINES

_HERE = Path(__file__).parent
_OPTIONS = {
    "h100": ["--gpu", "h100"],
    "t4": ["--gpu", "t4"],
    "a100": ["--gpu", "a100"],
    "h100x2": ["--gpu", "h100", "--gpus", "2"],
}


def _printed(script: str, machine: str, *arguments: str, **variables: str) -> dict:
    """Return the last line that a script prints on a pretended machine."""
    command = [sys.executable, "-m", "tests.pretence", *_OPTIONS[machine], str(_HERE / script), *arguments]
    run = subprocess.run(command, cwd=_HERE.parents[1], env=os.environ | variables, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict:
    checkpoint = str(tmp_path_factory.mktemp("planted") / "two_gpus.pt")
    machines = ["h100x2", *(machine for machine in MACHINES if machine != "h100x2")]  # it writes the checkpoint
    return {machine: _printed("planted.py", machine, machine, PLANTED_CHECKPOINT=checkpoint) for machine in machines}


@pytest.mark.slow
@pytest.mark.parametrize(("machine", "name"), [(machine, name) for machine in MACHINES for name in MACHINES[machine]])
def test_mistake_is_found_and_right_program_passes(outcomes: dict, machine: str, name: str) -> None:
    wrong, right = outcomes[machine][name]
    assert MACHINES[machine][name].words in wrong
    assert right == ""


@pytest.mark.slow
def test_mistakes_of_ranks_are_found() -> None:
    outcomes = _printed("planted_ranks.py", "h100x2")
    wrong, right = outcomes["rank_on_another_gpu"]
    assert "Duplicate GPU detected" in wrong
    assert right == [2.0, 2.0]
    wrong, right = outcomes["cpu_tensor_over_nccl"]
    assert "No backend type associated with device type cpu" in wrong
    assert right == [1.0, 1.0]
