"""Dry runs of today against what the same programs took on a real GPU."""

import json
import os
import subprocess
import sys

import pytest

from ..planner.published import shown
from ..sampling import sample
from . import against_gpu

HERE = [row for row in against_gpu.measured()["rows"] if "script" in row]
RANKS = ("ddp.py", "fsdp2.py")


def test_the_page_has_the_table_of_today():
    assert shown(against_gpu.PAGE, against_gpu.MARKS) == against_gpu.tables()


def test_a_dry_run_is_close_to_the_gpu():
    """Programs of more than a GiB: what is not modeled is small."""
    large = [row for row in against_gpu.measured()["rows"] if against_gpu.peak(row) > 2**30]
    assert len(large) > 30
    assert all(abs(against_gpu.error(row)) < against_gpu.REST for row in large)


@pytest.mark.slow
@pytest.mark.parametrize("row", sample(HERE, one_in=4), ids=lambda row: row["script"])
def test_a_dry_run_of_today_is_that_of_the_table(row):
    script = against_gpu.HERE / "programs" / row["script"]
    ranks = ["--torchrun"] * (row["script"] in RANKS)
    command = [sys.executable, "-m", "helpers", "dry-run", "--gpu", "h100", "--json", *ranks, str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=against_gpu.ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"gpu"')))
    today = max(step["allocated"] for step in report["steps"][1:])
    assert today == pytest.approx(against_gpu.dry_peak(row), rel=0.003)
    assert today == pytest.approx(against_gpu.peak(row), rel=0.005)
