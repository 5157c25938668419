"""Conformal intervals keep their word on sources that they were not made of."""

import math
import random
import statistics

import pytest

from tests.planner.conformal import covered, half_width, interval


def sources(seed, count=24):
    """Errors of sources that differ in bias, spread and size, as published ones do."""
    chance = random.Random(seed)
    made = {}
    for number in range(count):
        bias, spread = chance.gauss(0, 0.08), chance.uniform(0.01, 0.1)
        made[str(number)] = [abs(chance.gauss(bias, spread)) for _ in range(chance.choice((1, 3, 20, 90)))]
    return made


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_a_new_source_is_covered_as_promised(coverage):
    shares = [statistics.fmean(covered(sources(seed), coverage).values()) for seed in range(6)]
    assert statistics.fmean(shares) == pytest.approx(coverage, abs=0.06)


def test_a_source_counts_once_however_many_runs_it_has():
    few = {"a": [0.1], "b": [0.2], "c": [0.3]}
    assert half_width(few, 0.5) == half_width(few | {"a": [0.1] * 1000}, 0.5) == 0.2


def test_it_does_not_promise_what_it_cannot_know():
    with pytest.raises(ValueError, match="at most 75%"):
        half_width({"a": [0.1], "b": [0.2], "c": [0.3]}, 0.9)


def test_an_interval_is_as_wide_to_either_side():
    low, high = interval({str(n): [n / 100] for n in range(20)}, 0.9)
    assert low * high == pytest.approx(1)
    assert math.log(high) == pytest.approx(0.18)
