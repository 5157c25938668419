"""A backend that notes what `torch.compile` gives it."""

from helpers.exercises.sharding.blocks import MLPBlock
from helpers.exercises.sharding.noted_graphs import NotedGraphs

import torch


def test_graphs_are_noted_and_run_as_they_are():
    backend, block, x = NotedGraphs(), MLPBlock(4), torch.ones(2, 4)
    right = block(x)
    compiled = torch.compile(block, backend=backend)
    assert all(torch.equal(compiled(x), right) for _ in range(2))
    assert backend.largest == backend.graphs[0]
    assert [len(graph) for graph in backend.graphs] == [5]
    assert backend.runs == 2
