"""Timelines of a loader: those of a run, and those of the model."""

import time

from helpers import DigitFiles, LoaderTimeline
from helpers.core.notebook import to_png

import pytest


def test_timeline_without_workers_is_the_sum():
    line = LoaderTimeline.simulate([0.02] * 5, 0.01, workers=0)
    assert line.seconds == pytest.approx(5 * 0.03)
    assert line.idle == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("needed", "workers", "seconds"),
    [
        (0.02, 2, 0.02 + 10 * 0.01),  # the fill, then step after step
        (0.005, 1, 0.005 + 10 * 0.01),
        (0.04, 2, 5 * 0.04 + 2 * 0.01),  # two batches at a time, and the last two steps
    ],
)
def test_timeline_with_workers(needed, workers, seconds):
    line = LoaderTimeline.simulate([needed] * 10, 0.01, workers)
    assert line.seconds == pytest.approx(seconds)


def test_more_prefetching_covers_a_slow_batch_and_no_more_than_that():
    times = [0.1 if k % 8 == 4 else 0.01 for k in range(32)]
    idle = [LoaderTimeline.simulate(times, 0.015, 2, prefetch).idle for prefetch in (1, 2, 4, 8, 16)]
    assert idle == sorted(idle, reverse=True)
    assert idle[0] > idle[-1] + 0.1
    slow = LoaderTimeline.simulate([0.04] * 20, 0.01, 2, 2)
    assert slow.idle == pytest.approx(LoaderTimeline.simulate([0.04] * 20, 0.01, 2, 16).idle)


def test_timeline_says_who_worked_how_long():
    line = LoaderTimeline.simulate([0.04 * (3 if k % 8 == 4 else 1) for k in range(24)], 0.01, 4)
    assert line.work() == pytest.approx([0.48, 0.24, 0.24, 0.24])
    assert line.making == pytest.approx(0.05)
    assert line.handover == pytest.approx(0)
    late = LoaderTimeline([(0.03, 0.04), (0.05, 0.06)], [(0, 0.0, 0.02), (1, 0.0, 0.02)])
    assert late.handover == pytest.approx(0.01)


@pytest.mark.parametrize("workers", [0, 2])
def test_timeline_of_a_run(workers):
    files = DigitFiles(12, latency=0.004)
    line = LoaderTimeline.of(files, 2, workers, lambda batch: time.sleep(0.002), batches=5)
    assert len(line.steps) == len(line.batches) == 5
    assert [lane for lane, _, _ in line.batches] == ([0, 1, 0, 1, 0] if workers else [-1] * 5)
    assert line.making >= 0.008
    assert line.handover > 0


def test_timeline_draws_a_lane_for_each():
    line = LoaderTimeline.simulate([0.02] * 6, 0.01, 3)
    (axes,) = line.plot("three workers").axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["device", "worker 0", "worker 1", "worker 2"]
    assert to_png(line.plot("again")).startswith(b"\x89PNG")
