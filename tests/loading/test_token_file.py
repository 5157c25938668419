"""Documents in a mapped file of 16-bit tokens."""

import pickle

from helpers import TokenFile

import numpy as np
import psutil
import pytest
import torch


@pytest.fixture
def tokens(tmp_path):
    return TokenFile.write(tmp_path / "tokens.bin", [b"one", b"\xff", b"three"], copies=2)


def test_documents_come_back_as_they_were_written(tokens):
    assert len(tokens) == 6
    assert [bytes(tokens[k].tolist()) for k in range(6)] == 2 * [b"one", b"\xff", b"three"]
    assert tokens[0].dtype == torch.int64


def test_two_bytes_a_token(tokens):
    assert tokens.path.stat().st_size == 2 * 2 * 9 == tokens.tokens.nbytes


def test_a_worker_gets_the_path_and_not_the_tokens(tmp_path):
    large = TokenFile.write(tmp_path / "large.bin", [bytes(100_000)], copies=20)
    sent = pickle.dumps(large)
    assert len(sent) < 2_000
    assert torch.equal(pickle.loads(sent)[3], large[3])


def test_what_nobody_reads_takes_no_memory(tmp_path):
    large = TokenFile.write(tmp_path / "large.bin", [bytes(2**20)], copies=16)
    large.forget()
    before = psutil.Process().memory_info().rss
    assert large.tokens[-1] == 0
    a_little = psutil.Process().memory_info().rss - before
    assert np.all(large.tokens == 0)
    everything = psutil.Process().memory_info().rss - before
    assert a_little < large.tokens.nbytes / 4
    assert everything > large.tokens.nbytes * 0.9
