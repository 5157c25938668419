"""What the lab on failures breaks jobs with, and what its check looks through."""

import os
import random
from pathlib import Path

from helpers.exercises.failures import break_here as broken
from helpers.exercises.failures import fleet
from helpers.exercises.failures.break_here import break_here
from helpers.exercises.failures.diagnosis import DIAGNOSIS
from helpers.exercises.failures.fleet import DAY, Fleet
from helpers.exercises.failures.made_counters import FAULTS, made_counters
from helpers.exercises.failures.made_jobs import KINDS, made_job
from helpers.exercises.failures.pictures import rank_lanes, spike_figure
from helpers.exercises.failures.rank_log import Call, RankLogWriter, checksum, read_logs
from helpers.exercises.failures.suspects import SUSPECTS
from helpers.exercises.failures.torchrun_job import torchrun_job
from helpers.planner.goodput import goodput

import psutil
import pytest
import torch
import torch.distributed as dist


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


def test_a_log_survives_a_cut_line(tmp_path):
    writer = RankLogWriter(tmp_path, 0)
    with writer.call("all_reduce"):
        pass
    writer.note("checksum", 7)
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


def loses_a_node(folder: str) -> None:
    rank, ranks, attempt = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
    dist.init_process_group("gloo")
    Path(folder, f"{attempt}-{rank}-{ranks}").touch()
    dist.barrier()
    if ranks == 2:
        if rank == 1:
            break_here("lose node", "before", torch.nn.Linear(1, 1))
        dist.barrier()  # never comes back, or raises: the other rank is gone
        raise RuntimeError("the barrier was passed by a rank that is gone")
    dist.destroy_process_group()


@pytest.mark.slow
def test_torchrun_goes_on_with_one_node_when_the_other_is_lost(tmp_path):
    job = torchrun_job(loses_a_node, 1, str(tmp_path), restarts=2, nodes=2)
    assert job.code == 0, job.everything
    done = sorted(path.name for path in tmp_path.iterdir())  # attempt, rank, ranks
    assert {name[2:] for name in done} >= {"0-2", "1-2", "0-1"}, done  # both nodes, and one
    assert done[-1].endswith("0-1"), done  # in the end one
    assert not running("torch.distributed.run")


def test_counters_have_the_fault_they_were_made_with():
    chance = random.Random(0)
    for fault in FAULTS:
        nodes, blamed = made_counters(fault, chance)
        assert len(nodes) == 64
        assert (blamed is None) == (fault == "healthy")
        assert (None in nodes) == (fault == "dead")
    assert {check.fault for check in SUSPECTS} == set(FAULTS)


def test_a_fleet_accounts_for_all_of_its_time():
    used, events = Fleet(spares=6).run(54, seed=3)
    assert sum(used.values()) == pytest.approx(54 * DAY, rel=0.02)  # an event at the end may last longer
    assert min(used.values()) >= 0
    assert {kind for _, kind, _ in events} >= {"node", "hang", "software", "straggler"}
    assert [when for when, *_ in events] == sorted(when for when, *_ in events)


def test_the_averages_of_a_fleet_are_those_of_its_runs():
    runs = [Fleet(spares=4).run(5, seed) for seed in range(3)]
    shares, lost = Fleet(spares=4).average(runs=3, days=5)
    assert shares["training"] == pytest.approx(sum(used["training"] / sum(used.values()) for used, _ in runs) / 3)
    assert sum(shares.values()) == pytest.approx(1)
    assert lost["node"] > 0
    assert lost.total() == pytest.approx(sum(seconds for _, events in runs for *_, seconds in events) / 3)


@pytest.mark.parametrize("interval", [240.0, 1800.0])
def test_a_fleet_in_which_jobs_only_crash_has_the_goodput_of_the_formula(monkeypatch, interval):
    monkeypatch.setattr(fleet, "COUNTED", {"software": 419})
    monkeypatch.setattr(fleet, "ASSUMED", {})
    monkeypatch.setattr(Fleet, "PAUSES", 0)
    shares = [Fleet(interval=interval, compare=1e12).run(540, seed)[0]["training"] / (540 * DAY) for seed in range(6)]
    exact = goodput(interval, Fleet.SAVE, 54 * DAY / 419, Fleet.RESTART)
    assert sum(shares) / 6 == pytest.approx(exact, abs=0.005)


def test_each_setting_of_a_fleet_has_two_sides():
    def trained(**settings):
        return sum(Fleet(**settings).run(54, seed)[0]["training"] for seed in range(4))

    assert trained(timeout=60) < trained(timeout=240) > trained(timeout=7200)
    assert trained(interval=20) < trained(interval=240) > trained(interval=7200)
    assert trained(compare=300) < trained(compare=7200) > trained(compare=DAY)
    assert trained(spares=2) < trained(spares=24)


@pytest.mark.parametrize("fault", ["wrong gradient", "wrong weight", "slow", "hang", "kill", None])
def test_a_fault_breaks_one_thing_at_one_place(monkeypatch, fault):
    slept, killed = [], []
    monkeypatch.setattr(broken.time, "sleep", slept.append)
    monkeypatch.setattr(broken.os, "kill", lambda *arguments: killed.append(arguments))
    changed = {}
    for where in ("before", "after"):
        model = torch.nn.Linear(2, 2)
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        break_here(fault, where, model)
        moved = torch.nn.utils.parameters_to_vector(model.parameters()).detach() - weights
        wrong = torch.nn.utils.parameters_to_vector(p.grad for p in model.parameters())
        changed[where] = round(moved.sum().item()), round(wrong.sum().item())
    assert changed["before"] == (0, int(fault == "wrong gradient"))
    assert changed["after"] == (int(fault == "wrong weight"), 0)
    assert slept == {"slow": [0.05], "hang": [1000.0]}.get(fault, [])
    assert killed == ([(os.getpid(), 9)] if fault == "kill" else [])
