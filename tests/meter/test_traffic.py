"""Bytes that operations read and write."""

from helpers import traffic

import torch


def test_traffic_counts_what_operations_read_and_write():
    x, row = torch.randn(64, 32), torch.randn(32)
    moved = traffic(lambda: (x * 2).add_(x).t().expand(32, 64) + row[:, None])
    assert [name for name, _, _ in moved.rows] == ["mul", "add_", "add"]  # views move nothing
    assert [(read / x.nbytes, written / x.nbytes) for _, read, written in moved.rows[:2]] == [(1, 1), (2, 1)]
    assert moved.rows[2][1:] == (x.nbytes + row.nbytes, x.nbytes)
    assert traffic(lambda: x * x).nbytes == 2 * x.nbytes  # x is read once
    assert traffic(lambda: x + row.expand(64, 32)).nbytes == 2 * x.nbytes + row.nbytes
    assert traffic(torch.empty, 5).nbytes == 0
    assert "3 operations move 7.02" in moved.table(x.nbytes)


def test_traffic_of_a_backward_pass():
    x = torch.randn(64, requires_grad=True)
    assert len(traffic(lambda: x.exp().sum().backward()).rows) > len(traffic(lambda: x.exp().sum()).rows)
