"""Bytes that autograd saves for the backward pass."""

import weakref

from helpers import saved_tensor_bytes

import pytest
import torch


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_saved_tensor_bytes_are_those_autograd_saves(backend):
    x, w = torch.randn(8, 4), torch.randn(4, 4, requires_grad=True)

    def forward():
        return (x @ w).sigmoid()

    run = torch.compile(forward, backend=backend) if backend else forward
    assert saved_tensor_bytes(run, besides=(x, w)) == 8 * 4 * 4  # the sigmoid's result
    assert saved_tensor_bytes(run) == 8 * 4 * 4 + x.nbytes


def test_an_output_that_saves_itself_is_let_go():
    x, results = torch.randn(8, requires_grad=True), []

    def forward():
        y = x.tanh()
        results.append(weakref.ref(y))
        return y

    assert saved_tensor_bytes(forward) == x.nbytes
    assert results[0]() is None
