"""The ranks of a lab, started again and again; and that the soak sees what it is there to see.

`make test` does a few runs of one lab; `make test-all` two hundred of each.
"""

import json
import subprocess
import sys
from pathlib import Path

from helpers.exercises.checking import find_part

import pytest

from .sampling import runs_whole, sample, sample_seed
from .soak import LABS, Count, Falsity, soak, starts_ranks

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("lab", sample(list(LABS), one_in=len(LABS)))
def test_ranks_are_right_every_time(lab):
    runs = 200 if runs_whole() else 8
    line = [sys.executable, "-m", "tests.soak", lab, "--runs", str(runs), "--seed", str(sample_seed())]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=4 * 3600)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    count = json.loads(done.stdout)
    assert (count["runs"], count["false"], count["failed"], count["left"]) == (runs, 0, 0, 0)
    assert count["ranks"] >= count["starts"] >= runs / 2  # a job under torchrun starts its ranks itself


def test_what_goes_wrong_is_counted(monkeypatch):
    monkeypatch.setattr("tests.soak.SETTLED", 0.1)
    there = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)  # it was here before

    def false(seed):
        raise Falsity("a right answer is refused")

    def failing(seed):
        raise RuntimeError("a rank died")

    def leaving(seed):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    count = Count("nothing")
    try:
        soak([lambda seed: None, false, failing, leaving], count, runs=5, seed=0)
        assert there.poll() is None
    finally:
        there.kill()
        there.wait()
        there.stdin.close()
    assert (count.runs, count.false, count.failed, count.left) == (5, 1, 1, 1)
    assert not count.right
    assert count.seen[:2] == ["a right answer is refused", "RuntimeError: a rank died"]


def test_it_stops_when_its_time_is_over():
    count = Count("nothing")
    soak([lambda seed: None], count, runs=10**9, seed=0, seconds=0.2)
    assert 0 < count.runs < 10**9
    assert count.right


def test_it_knows_which_checks_start_ranks():
    assert starts_ranks(find_part("when_ranks_go_wrong.average"))
    assert not starts_ranks(find_part("data_parallel.link"))
