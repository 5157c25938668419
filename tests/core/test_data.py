"""The data that needs no download."""

from helpers import digits, english

import torch


def test_digits_are_real_and_split_without_overlap():
    data = digits()
    assert data.train_x.shape[1:] == (1, 8, 8)
    assert len(data.train_x) + len(data.test_x) == 1797
    assert set(data.train_y.tolist()) == set(range(10))
    train = {tuple(x.flatten().tolist()) for x in data.train_x}
    twins = sum(tuple(x.flatten().tolist()) in train for x in data.test_x)
    assert twins == 0
    assert digits(size=16).test_x.shape[-2:] == (16, 16)
    assert torch.equal(digits().train_x, data.train_x)  # the same split each time


def test_english_text_is_shifted_by_one_and_readable():
    data = english()
    assert torch.equal(data.train_x[1:], data.train_y[:-1])
    assert len(data.train_x) > 200_000
    assert b" the " in bytes(data.test_x.tolist())
