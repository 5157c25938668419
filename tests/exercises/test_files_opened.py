"""Files that a piece of code writes to are seen, files that it reads are not."""

import pickle
import sqlite3

from helpers.exercises.probing.files_opened import files_opened

import numpy as np
import pytest
import torch

WRITES = {
    "open": lambda path: path.open("wb").close(),
    "pickle": lambda path: path.write_bytes(pickle.dumps(1)),
    "numpy": lambda path: np.save(path, np.ones(3)),
    "memmap": lambda path: np.memmap(path, np.float32, "w+", shape=(3,)),
    "torch": lambda path: torch.save(torch.ones(3), path),
    "sqlite": lambda path: sqlite3.connect(path).close(),
}


@pytest.mark.parametrize("way", WRITES)
def test_a_file_that_is_written_to_is_seen(way, tmp_path):
    path = tmp_path / "kept.npy"
    with files_opened() as files:
        WRITES[way](path)
    assert str(path) in files
    files.clear()
    WRITES[way](path)
    assert files == []  # afterwards nothing is noted


def test_reading_is_no_writing(tmp_path):
    path = tmp_path / "given.npy"
    np.save(path, np.ones(3))
    with files_opened() as files:
        np.load(path)
        path.read_bytes()
    assert files == []
