"""What the lab on runs that survive breaks jobs with, and what its checks look through."""

import math
import os
import random
from pathlib import Path

from helpers.exercises.runs_that_survive.diagnosis import DIAGNOSIS
from helpers.exercises.runs_that_survive.killed_run import killed_runs
from helpers.exercises.runs_that_survive.made_jobs import KINDS, made_job
from helpers.exercises.runs_that_survive.pictures import goodput_figure, losses_figure, parts_figure, spike_figure
from helpers.exercises.runs_that_survive.published import PUBLISHED_RUNS
from helpers.exercises.runs_that_survive.rank_log import Call, RankDiary, checksum, read_logs
from helpers.exercises.runs_that_survive.torchrun_job import torchrun_job
from helpers.exercises.runs_that_survive.torn import torn_files
from helpers.exercises.runs_that_survive.training import Training
from helpers.planner.goodput import goodput

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


def test_a_training_goes_on_bit_for_bit_and_not_without_a_part():
    run = Training(20)
    for step in range(20):
        if step == 10:
            state = run.state()
        run.step()
    for part in ("", *Training.PARTS):
        later = Training(20)
        later.load(state, {part})
        for _ in range(10):
            later.step()
        assert (later.losses == run.losses[10:]) == (part == "")


def test_youngs_interval_is_the_best_of_the_goodput():
    young = math.sqrt(2 * 1.0 * 1e4)
    assert all(goodput(young, 1.0, 1e4) >= 0.999 * goodput(young * f, 1.0, 1e4) for f in (0.5, 0.9, 1.1, 2))


def test_published_rates_are_alike():
    rates = [run.per_gpu_day for run in PUBLISHED_RUNS]
    assert max(rates) < 6 * min(rates)
    assert PUBLISHED_RUNS[0].hours_between == pytest.approx(3.09, abs=0.01)


def running(name: str) -> list[psutil.Process]:
    return [p for p in psutil.Process().children(recursive=True) if name in " ".join(p.cmdline())]


@pytest.mark.slow
def test_killed_runs_do_their_work_and_leave_no_process():
    before = set(psutil.Process().children(recursive=True))  # of other tests
    (run,) = killed_runs({"one": 5}, steps=40, tick=0.005, save=0.005, mtbf=0.15).values()
    assert run.busy or run.seconds >= run.work
    assert run.parts["useful"] == run.work == pytest.approx(0.2)
    left = {p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE} - before
    servers = ("forkserver", "resource_tracker")  # start processes, and stay for the next ones
    assert [line for p in left if not any(name in (line := " ".join(p.cmdline())) for name in servers)] == []
    assert sum("forkserver" in " ".join(p.cmdline()) for p in left) <= 1
    parts_figure({"one": run})


@pytest.mark.slow
def test_kills_tear_files():
    assert torn_files(5) > 0


def test_pictures():
    goodput_figure(600.0, {0.5: [50.0, 60.0], 1: [55.0, 65.0]})
    goodput_figure(600.0, exact={"save": 60, "restart": 600, "mtbf": 11_000})
    losses_figure([1.0] * 4, dict.fromkeys(Training.PARTS, [1.0] * 2), 2)
    spike_figure({"carry on": [1.0, 2.0]}, 1)


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
