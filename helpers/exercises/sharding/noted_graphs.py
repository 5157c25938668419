"""What `torch.compile` hands to its backend, without a compiler."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


class NotedGraphs:
    """A backend that compiles nothing: it notes the graphs that it is given, and runs them as they are.

    Attributes:
        graphs: the operations of each graph, by name.
        runs: how often graphs have been run.
    """

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Return what runs in place of `graph`, as `torch.compile` asks of a backend."""
        calls = [node for node in graph.graph.nodes if node.op.startswith("call_")]
        self.graphs.append([getattr(node.target, "__name__", str(node.target)) for node in calls])

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph(*args)

        return run

    @property
    def largest(self) -> list[str]:
        """The operations of the largest graph."""
        return max(self.graphs, key=len)
