"""What the lab on checkpoints kills and resumes."""

import math

from helpers.exercises.runs_that_survive.killed_run import killed_runs
from helpers.exercises.runs_that_survive.pictures import goodput_figure, losses_figure, parts_figure
from helpers.exercises.runs_that_survive.published import PUBLISHED_RUNS
from helpers.exercises.runs_that_survive.torn import torn_files
from helpers.exercises.runs_that_survive.training import Training
from helpers.planner.goodput import goodput

import psutil
import pytest


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
