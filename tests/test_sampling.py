"""The sample that `make test` runs changes from day to day, and leaves nothing out for long."""

import os
import subprocess
import sys

from helpers.core.files import ROOT

import pytest

from .costs import ROUND
from .sampling import days_turn, sample, sample_seed, sample_with_quick, share_seed, time_is_up

ITEMS = [f"item {i}" for i in range(17)]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    monkeypatch.setenv("SAMPLE_SEED", "")
    monkeypatch.delenv("WHOLE_LABS", raising=False)


@pytest.mark.parametrize("one_in", [1, 3, 6, 20])
@pytest.mark.parametrize("first_day", [0, 20_000, 20_779])
def test_over_as_many_days_each_item_runs_exactly_once(monkeypatch, one_in, first_day):
    run = []
    for day in range(first_day, first_day + one_in):
        monkeypatch.setattr("time.time", lambda day=day: day * 86_400 + 3_600.5)
        run += sample(ITEMS, one_in)
    assert sorted(run) == sorted(ITEMS)


@pytest.mark.parametrize(("one_in", "quick_one_in"), [(1, 4), (3, 2), (6, 4)])
def test_each_item_has_its_day_among_the_quick_ones(monkeypatch, one_in, quick_one_in):
    quick = []
    for day in range(one_in * quick_one_in):
        monkeypatch.setenv("SAMPLE_SEED", str(day))
        parameters = sample_with_quick(ITEMS, one_in, quick_one_in)
        assert [values[0] for values, _, _ in parameters] == sample(ITEMS, one_in)
        assert all([mark.name for mark in marks] in ([], ["slow"]) for _, marks, _ in parameters)
        quick += [values[0] for values, marks, _ in parameters if not marks]
    assert sorted(quick) == sorted(ITEMS)


def test_an_item_may_hold_several_arguments():
    assert [values for values, _, _ in sample_with_quick([(1, "a"), (2, "b")], 1, 2)] == [(1, "a"), (2, "b")]


def test_the_sample_keeps_the_order_and_can_be_repeated(monkeypatch):
    monkeypatch.setenv("SAMPLE_SEED", "5")
    assert sample(ITEMS, 6) == ["item 1", "item 7", "item 13"]
    assert sample(ITEMS, 6) == sample(ITEMS, 6)


def test_of_a_changed_topic_all_runs(monkeypatch):
    monkeypatch.setenv("SAMPLE_SEED", "5")
    monkeypatch.setenv("CHANGED_TOPICS", "2 6")
    assert sample(ITEMS, 6, topic=lambda item: item[-1]) == [f"item {i}" for i in (1, 2, 6, 7, 12, 13, 16)]
    quick = [not marks for _, marks, _ in sample_with_quick(ITEMS, 6, 2, topic=lambda item: item[-1])]
    assert sum(quick) == 1


def test_everything_runs_when_asked_for(monkeypatch):
    monkeypatch.setenv("WHOLE_LABS", "1")
    assert sample(ITEMS, 6) == ITEMS
    assert [values[0] for values, _, _ in sample_with_quick(ITEMS, 6, 4)] == ITEMS


def test_a_run_that_goes_past_midnight_keeps_its_seed(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 86_400.0 * 100 - 1)
    share_seed()
    monkeypatch.setattr("time.time", lambda: 86_400.0 * 100 + 1)
    assert sample_seed() == 99


def test_time_is_up_after_the_given_moment_and_never_without_one(monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    monkeypatch.delenv("SAMPLE_UNTIL", raising=False)
    assert not time_is_up()
    for until, up in (("999", True), ("1001", False), ("", False)):
        monkeypatch.setenv("SAMPLE_UNTIL", until)
        assert time_is_up() == up


def test_after_its_time_a_run_skips_slow_tests_and_says_so():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "slow",
        "tests/core/test_parallel_map.py",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"SAMPLE_UNTIL": "1", "COSTS": ""}, capture_output=True, text=True
    )
    assert "SAMPLE_UNTIL is over" in done.stdout
    assert " passed" not in done.stdout


def test_pytest_prints_the_seed_and_how_to_repeat_it():
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", __file__]
    env = {**os.environ, "SAMPLE_SEED": "7"}
    out = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True).stdout
    assert "sample: seed 7 (set SAMPLE_SEED to repeat; WHOLE_LABS=1 runs everything)" in out


def test_each_day_has_its_turn_once_in_a_round_and_meets_every_turn_of_a_sample(monkeypatch):
    met, turns = set(), []
    for day in range(ROUND * 60):
        monkeypatch.setenv("SAMPLE_SEED", str(day))
        (turn,) = [n for n in range(ROUND) if days_turn(n)]
        met.add((day % 14, turn))  # a sample of one in two rounds
        turns = [turn] if day % ROUND == 0 else [*turns, turn]
        assert len(set(turns)) == len(turns)
    assert len(met) == 14 * ROUND
