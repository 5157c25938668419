"""What the lab on failures breaks jobs with, and what its check looks through."""

import os
import random
from pathlib import Path

from helpers.exercises.failures.diagnosis import DIAGNOSIS
from helpers.exercises.failures.made_jobs import KINDS, made_job
from helpers.exercises.failures.pictures import rank_lanes, spike_figure
from helpers.exercises.failures.rank_log import Call, RankDiary, checksum, read_logs
from helpers.exercises.failures.torchrun_job import torchrun_job

import psutil
import pytest
import torch


@pytest.mark.parametrize("kind", KINDS)
def test_a_made_job_has_the_fault_it_was_made_with(kind):
    chance = random.Random(0)
    for _ in range(20):
        logs, blamed = made_job(kind, chance)
        assert (blamed is None) == (kind == "healthy")
        assert any(log.exit_code == -9 for log in logs) == (kind == "killed")
        differ = any(len(set(step)) > 1 for step in zip(*(log.checksums for log in logs), strict=False))
        assert differ == (kind == "wrong")
        waiting = [bool(log.calls) and log.calls[-1].answered is None for log in logs]
        if kind == "hung":
            assert waiting.count(False) == 1
            assert not waiting[blamed]
        assert any(waiting) == (kind in ("killed", "hung"))
    assert {check.kind for check in DIAGNOSIS} == set(KINDS)


def test_a_diary_survives_a_cut_line(tmp_path):
    diary = RankDiary(tmp_path, 0)
    with diary.call("all_reduce"):
        pass
    diary.note("checksum", 7)
    with (tmp_path / "attempt-0-rank-0.jsonl").open("a") as file:
        file.write('["asked", "all_re')
    (log,) = read_logs(tmp_path, {0: -9})
    assert log.exit_code == -9
    assert log.checksums == [7]
    assert [call.name for call in log.calls] == ["all_reduce"]
    assert isinstance(log.calls[0], Call)


def test_one_bit_changes_the_checksum():
    a = torch.ones(10)
    b = a.clone()
    b.view(torch.int32)[3] ^= 1
    assert checksum([a]) == checksum([a.clone()])
    assert checksum([a]) != checksum([b])


def test_pictures():
    spike_figure({"carry on": [1.0, 2.0]}, 1)
    titles = {kind: rank_lanes(made_job(kind, random.Random(0))[0]).axes[0].get_title() for kind in KINDS}
    assert {kind for kind, title in titles.items() if "differ" in title} == {"wrong"}


def running(name: str) -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if name in " ".join(p.cmdline())]


def fails_once(folder: str) -> None:
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    Path(folder, f"{attempt}-{rank}").touch()
    if (rank, attempt) == (1, 0):
        os.kill(os.getpid(), 9)


@pytest.mark.slow
def test_torchrun_starts_again_after_a_kill(tmp_path):
    job = torchrun_job(fails_once, 2, str(tmp_path), restarts=1)
    assert job.code == 0, job.everything
    assert job.failures == [(-9, 1)]
    assert job.exit_codes(0, 2) == {0: -15, 1: -9}
    assert job.exit_codes(1, 2) == {0: 0, 1: 0}
    assert (tmp_path / "1-1").exists()
    assert not running("torch.distributed.run")
