"""A run that is killed at random moments ends as if it had not been: X6's reference, and exported scripts.

`make test` kills some of them a few times; `make test-all` kills X6's reference and one script a hundred times. Each
runs in a process of its own, so that none of its processes is mistaken for another test's.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .kills import SCRIPTS
from .sampling import runs_whole, sample, sample_seed

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", [*sample(["x6", "fsdp"], one_in=2), *sample([name for name in SCRIPTS if name != "fsdp"], one_in=10)]
)
def test_random_kills_change_nothing(what):
    _kill(what, "KILL")


@pytest.mark.slow
@pytest.mark.parametrize("what", sample([name for name in SCRIPTS if name != "in-backward"], one_in=6))
def test_sigterm_at_random_loses_no_step(what):
    _kill(what, "TERM")


def _kill(what, name):
    kills = {"x6": 8, "fsdp": 4}.get(what, 3)
    if runs_whole():
        kills = 100 if what in ("x6", "fsdp") else 10
    line = [sys.executable, "-m", "tests.kills", what, "--kills", str(kills), "--signal", name]
    line += ["--seed", str(sample_seed())]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    count = json.loads(done.stdout)
    assert count["kills"] == kills
    assert count["runs"] > 0
    assert count["checkpoints"] > 0
    assert (count["torn"], count["unlike"], count["left"]) == (0, 0, 0)
