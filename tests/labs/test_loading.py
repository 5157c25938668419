"""Files of digits, what is carried to workers, and the model of DataLoader's timeline."""

import pickle
import subprocess
import sys
import time
import warnings

from helpers import Carried, DigitFiles, LoaderTimeline, rotate
from helpers.core.notebook import to_png

import pytest
import torch
from torch.utils.data import DataLoader


def test_files_are_the_digits_and_reads_are_written_down():
    files = DigitFiles(6, augmented=False)
    assert files.files[0].startswith(b"\x89PNG")
    image, label = files[3]
    assert image.shape == (1, 32, 32)
    assert 0 <= image.min() < image.max() <= 1
    assert int(label) == int(files.labels[3])
    assert torch.equal(image, files[3][0])
    assert files.reads.tolist() == [0, 0, 0, 2, 0, 0]
    start, end, process, degrees = files.log[3].tolist()
    assert start < end
    assert process > 0
    assert degrees != degrees  # NaN: not turned


def test_each_read_turns_anew_and_a_seed_repeats_it():
    files = DigitFiles(2)
    drawn = []
    for seed in (1, 1, 2):
        files.reseed(seed)
        files[0], files[1]
        drawn.append(tuple(files.log[:, 3].tolist()))
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


def test_turning_one_by_one_or_at_once_is_the_same():
    files = DigitFiles(4, augmented=False)
    images, degrees = torch.stack([files[i][0] for i in range(4)]), torch.tensor([0.0, 90.0, -20.0, 180.0])
    together = rotate(images, degrees)
    apart = torch.cat([rotate(image[None], angle[None]) for image, angle in zip(images, degrees, strict=True)])
    torch.testing.assert_close(together, apart)
    torch.testing.assert_close(together[0], images[0])
    torch.testing.assert_close(together[3], images[3].flip(1, 2), atol=1e-4, rtol=0)


def test_a_read_waits():
    files = DigitFiles(1, latency=0.02)
    start = time.perf_counter()
    files[0]
    assert time.perf_counter() - start >= 0.02


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_write_to_the_same_log(workers):
    files = DigitFiles(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in DataLoader(files, 2, num_workers=workers):
            pass
    assert files.reads.tolist() == [1] * 8
    assert len(set(files.log[:, 2].tolist())) == workers


def test_a_lambda_is_carried_and_arrives_as_itself():
    double = Carried(lambda x: 2 * x)
    arrived = pickle.loads(pickle.dumps(double))
    assert arrived(4) == double(4) == 8
    assert not isinstance(arrived, Carried)
    assert (len(Carried([1, 2])), Carried([1, 2])[1]) == (2, 2)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(lambda x: x)


SCRIPT = """
from helpers import Carried, script_as_notebook
from torch.utils.data import DataLoader
print("once")
script_as_notebook()
loader = DataLoader(Carried([1, 2, 3, 4]), 2, num_workers=1, multiprocessing_context="spawn")
print([batch.tolist() for batch in loader])
"""


@pytest.mark.slow
def test_a_script_without_a_guard_starts_workers_and_runs_once(tmp_path):
    path = tmp_path / "lab.py"
    path.write_text(SCRIPT)
    run = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert run.stdout.splitlines() == ["once", "[[1, 2], [3, 4]]"]
    assert run.stderr == ""


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
