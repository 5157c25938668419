"""One rank against a world that is not there: its peak and its collectives are those of real ranks over gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

from helpers.core.files import ROOT
from helpers.virtual_gpu.machine import Machine
from helpers.virtual_gpu.process import environment

import pytest

PROGRAM = Path(__file__).with_name("rank_programs.py")
RANKS = {"ddp": 8, "fsdp2": 8, "tp": 8, "pp": 8, "fsdp1": 4, "gpipe": 4}
SECONDS = 500  # all ranks import PyTorch at once, on few cores


def free_port():
    import socket

    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def real(kind, folder):
    """Run all ranks on virtual GPUs that compute; return what each has seen."""
    plain = os.environ | environment(Machine.named("a100-80gb", RANKS[kind])) | {"OMP_NUM_THREADS": "1"}
    plain |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "COUNT_INTO": f"{folder}/{kind}"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), kind],
            env=plain | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS[kind])},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS[kind])
    ]
    try:
        errors = [rank.communicate(timeout=SECONDS)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()  # one that waits for a rank that failed would stay
    files = [Path(f"{folder}/{kind}{rank}") for rank in range(RANKS[kind])]
    assert all(file.exists() for file in files), errors[0][-3000:]
    return [json.loads(file.read_text()) for file in files]


def dry(kind, rank):
    """Run one rank dry; return its peak, and calls and bytes of each collective."""
    options = ["--gpu", "a100-80gb", "--gpus", str(RANKS[kind]), "--rank", str(rank), "--steps", "9", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "helpers", "dry-run", *options, str(PROGRAM), kind],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout.splitlines()[-1])
    rows = {}
    for row in report["collectives"]:
        calls, nbytes = rows.get(row["name"], (0, 0))
        rows[row["name"]] = [calls + row["calls_in_all"], nbytes + row["bytes_in_all"]]
    return {"peak": report["peak_allocated_bytes"], "rows": rows}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RANKS)
def test_a_rank_has_the_peak_and_the_collectives_of_a_real_one(kind, tmp_path):
    found = real(kind, tmp_path)
    middle = {RANKS[kind] // 2} if kind in ("pp", "gpipe") else set()  # stages differ, the ranks of others do not
    for rank in sorted({0, RANKS[kind] - 1} | middle):
        alone = dry(kind, rank)
        assert alone["rows"] == found[rank]["rows"], f"rank {rank}"
        assert alone["peak"] == pytest.approx(found[rank]["peak"], rel=1e-3), f"rank {rank}"
