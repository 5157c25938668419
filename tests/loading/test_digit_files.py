"""The digits as files, and the log of who read them when."""

import time
import warnings

from helpers import DigitFiles, rotate

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
