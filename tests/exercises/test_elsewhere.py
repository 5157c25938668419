"""Tensors that are put elsewhere come back as they were."""

from helpers import Elsewhere

import pytest
import torch


def test_tensors_come_back_in_any_order_and_more_than_once():
    elsewhere = Elsewhere()
    first, second = torch.randn(3, 4, requires_grad=True), torch.randn(5, 2).T  # the second is not contiguous
    tickets = [elsewhere.put(first), elsewhere.put(second)]
    assert elsewhere.nbytes == (12 + 10) * 4
    for _ in range(2):
        assert torch.equal(elsewhere.get(tickets[1]), second)
        assert torch.equal(elsewhere.get(tickets[0]), first)


def test_a_copy_does_not_change_with_the_tensor():
    elsewhere, tensor = Elsewhere(), torch.ones(4)
    ticket = elsewhere.put(tensor)
    tensor.zero_()
    assert torch.equal(elsewhere.get(ticket), torch.ones(4))


def test_a_full_disk_is_an_error():
    elsewhere = Elsewhere()
    ticket = elsewhere.put(torch.ones(4))
    ticket[0].truncate(8)
    with pytest.raises(OSError, match="is the disk full"):
        elsewhere.get(ticket)
