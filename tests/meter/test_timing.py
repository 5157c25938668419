"""Timings and comparisons."""

import time

from helpers import benchmark, compare


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
        lambda: (order.append("a"), time.sleep(0.02)), lambda: (order.append("b"), time.sleep(0.005)), runs=4, warmup=1
    )
    assert order == ["a", "b"] * 5
    assert result.speedup > 1.5
