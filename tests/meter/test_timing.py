"""Timings and comparisons."""

import time

from helpers import benchmark, compare
from helpers.meter.timing import Comparison, Timing


def test_timing_measures_what_ran():
    timing = benchmark(lambda: time.sleep(0.01), runs=5, warmup=0)
    assert len(timing.runs) == 5
    assert timing.median >= 0.01
    assert "5 runs" in str(timing)


def test_warm_up_does_not_count():
    calls = []
    benchmark(lambda: calls.append(1), runs=3, warmup=2)
    assert len(calls) == 5


def test_comparison_alternates_and_says_which_is_faster():
    order = []
    result = compare(
        lambda: (order.append("a"), time.sleep(0.1)), lambda: (order.append("b"), time.sleep(0.001)), runs=4, warmup=1
    )
    assert order == ["a", "b"] * 5
    assert result.speedup > 1.5


def test_a_comparison_shows_how_far_the_pairs_agree():
    steady, jumpy = Timing((2.0, 2.0, 2.0, 2.0)), Timing((1.0, 4.0, 1.0, 4.0))
    assert str(Comparison(steady, Timing((1.0, 1.0, 1.0, 1.0)))).endswith(
        "2.00x (middle half of the pairs: 2.00 to 2.00)"
    )
    assert "2500.00 ms, too close to tell: median pair" in str(Comparison(steady, jumpy))
    assert str(Comparison(steady, jumpy)).endswith("1.25x (middle half of the pairs: 0.50 to 2.00)")
    assert str(Comparison(Timing((2.0,)), Timing((1.0,)))).endswith(": 2.00x")
