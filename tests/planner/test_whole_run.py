"""A whole run: goodput against simulated failures, the best interval, and what the command says."""

import math
import random

from helpers.exercises.reference.runs_that_survive import wall_clock
from helpers.exercises.runs_that_survive.published import PUBLISHED_RUNS
from helpers.planner import RecipeError
from helpers.planner.goodput import best_interval, goodput
from helpers.planner.whole_run import FAILURES_PER_GPU_DAY, WholeRun, read_tokens

import pytest


def run(**changes):
    given = {"tokens": 1e12, "gpus": 1000, "parameters": 70e9, "tokens_per_second": (1e6, 0.9e6, 1.1e6)}
    return WholeRun(**given | changes)


def test_goodput_is_that_of_simulated_failures():
    chance, failures, mtbf = random.Random(0), [0.0], 1000.0
    while failures[-1] < 4e6:
        failures.append(failures[-1] + chance.expovariate(1 / mtbf))
    for interval, save, restart in ((100.0, 10.0, 30.0), (300.0, 40.0, 0.0), (50.0, 20.0, 200.0)):
        simulated = 1e6 / wall_clock(1e6, interval, save, restart, failures[1:])
        assert goodput(interval, save, mtbf, restart) == pytest.approx(simulated, rel=0.03)


@pytest.mark.parametrize("share", [1e-4, 1e-2, 0.1, 0.5])
def test_no_other_interval_is_better(share):
    save, mtbf = 1.0, 1 / share
    best = max(goodput(math.sqrt(2 * save * mtbf) * 1.02**n, save, mtbf) for n in range(-60, 60))
    assert goodput(best_interval(save, mtbf), save, mtbf) >= 0.998 * best


def test_a_run_adds_up():
    whole = run(price=2.0)
    assert whole.seconds[0] == pytest.approx(1e6 / whole.goodput)
    assert whole.seconds[1] < whole.seconds[0] < whole.seconds[2]
    assert whole.gpu_hours[0] == pytest.approx(1000 * whole.seconds[0] / 3600)
    assert whole.mtbf == pytest.approx(86_400 / (1000 * FAILURES_PER_GPU_DAY))
    said = whole.to_json()
    assert said["cost"] == pytest.approx(2 * said["gpu_hours"])
    assert said["cost_interval"] == pytest.approx([2 * hours for hours in said["gpu_hours_interval"]])


def test_more_failures_cost_more_and_none_cost_nothing_but_time_to_save():
    shares = [run(failures_per_gpu_day=rate).goodput for rate in (0.0, 1e-4, 1e-3, 1e-2)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9999
    assert run(failures_per_gpu_day=0.0).interval == pytest.approx(1e6)


def test_defaults_are_those_of_llama_3():
    assert pytest.approx(PUBLISHED_RUNS[0].per_gpu_day) == FAILURES_PER_GPU_DAY
    llama = run(gpus=16_384, parameters=405e9)
    assert 0.9 < llama.goodput < 0.97  # "higher than 90 %"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tokens": 0.0}, "run-tokens"),
        ({"failures_per_gpu_day": -1.0}, "failures-per-gpu-day"),
        ({"failures_per_gpu_day": math.nan}, "failures-per-gpu-day"),
        ({"save": 0.0}, "checkpoint-seconds"),
        ({"restart": -1.0}, "restart-seconds"),
        ({"price": -1.0}, "price"),
        ({"failures_per_gpu_day": 1e6}, "never ends"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, word):
    with pytest.raises(RecipeError, match=word):
        run(**changes)


def test_tokens_are_read():
    assert [read_tokens(text) for text in ("15T", "300b", "1.5e9", "1,000", "2 M")] == [15e12, 300e9, 1.5e9, 1000, 2e6]
    for text in ("", "T", "many", "-3", "nan", "1.2.3"):
        with pytest.raises(RecipeError, match="run-tokens"):
            read_tokens(text)
