"""Check of a backend that counts: the operations of each graph, and which graph each call runs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.device import pick_device
from ..base import Check, Evidence
from ..probing.plain import plain

Backend = Callable[..., Callable[..., Any]]
CountingBackend = Callable[[list[int], list[int]], Backend]
SAME = 1e-5  # of the largest number
# The functions that are compiled, and how many numbers each call is given: a new length makes a new graph.
CALLS = (("wave", 4), ("wave", 6), ("wave", 4), ("line", 4), ("wave", 6), ("line", 4))


def wave(x: Tensor) -> Tensor:
    """Three operations, of which one is a method."""
    return torch.sin(x).abs() + 1


def line(x: Tensor) -> Tensor:
    """Two operations."""
    return 3 * x - 1


def pair(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Two results of a matmul."""
    product = x @ weight
    return product.relu(), product.square().sum()


def _lists(counting_backend: CountingBackend) -> Evidence:
    """Compile two functions with one backend, make `CALLS`, and return the two lists."""
    made: list[int] = []
    ran: list[int] = []
    torch._dynamo.reset()
    backend = counting_backend(made, ran)
    compiled = {fn.__name__: torch.compile(fn, backend=backend, dynamic=False) for fn in (wave, line)}
    for name, length in CALLS:
        compiled[name](torch.ones(length, device=pick_device()))
    torch._dynamo.reset()
    return {"made": [int(n) for n in made], "ran": [int(n) for n in ran]}


class CountsOperations(Check):
    """`made` has one entry per graph: how many operations the graph has."""

    hint = (
        "PyTorch calls the backend once per graph. What is there to count at that moment?\n"
        "`node.op` is 'placeholder' for an input and 'output' for the result. Functions are 'call_function', methods "
        "'call_method'."
    )

    @staticmethod
    def probe(seed: int, counting_backend: CountingBackend) -> Evidence:
        return _lists(counting_backend)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        mine, right = seen["made"], expected["made"]
        if mine == right:
            return None
        if len(mine) != len(right):
            return (
                f"{len(right)} graphs were made, and `made` has {len(mine)} entries. Append to it in the backend, "
                "once per graph."
            )
        return (
            f"`made` should be {right}; it is {mine}. Count the nodes whose `op` starts with 'call_': "
            "functions and methods, but not inputs and the output."
        )


class SaysWhichRan(Check):
    """`ran` has one entry per call of a graph: its index in `made`."""

    hint = (
        "When does the backend run, and when does the callable that it returns?\n"
        "The index has to be fixed when the graph is made: `len(made)` is larger by the time an old graph runs again."
    )

    @staticmethod
    def probe(seed: int, counting_backend: CountingBackend) -> Evidence:
        return {"ran": _lists(counting_backend)["ran"]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        mine, right = seen["ran"], expected["ran"]
        if mine == right:
            return None
        if len(mine) != len(right):
            return (
                f"Graphs ran {len(right)} times, and `ran` has {len(mine)} entries. Append to it in the callable that "
                "the backend returns, not in the backend."
            )
        return (
            f"`ran` should be {right}; it is {mine}. Is each entry the index of the graph that ran, "
            "also when newer graphs have been made since?"
        )


class ReturnsTheSameNumbers(Check):
    """A function compiled with the backend returns the results and gradients of eager mode."""

    hint = (
        "A graph takes the inputs that the callable is given, and returns a tuple of results.\n"
        "Return what `graph(*inputs)` returns, unchanged."
    )

    @staticmethod
    def probe(seed: int, counting_backend: CountingBackend) -> Evidence:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(5, 3, generator=generator).to(pick_device())
        weight = torch.randn(3, 4, generator=generator).to(pick_device()).requires_grad_()
        torch._dynamo.reset()
        compiled = torch.compile(pair, backend=counting_backend([], []), dynamic=False)
        seen: Evidence = {}
        for call in ("first", "second"):
            weight.grad = None
            results = compiled(x if call == "first" else -x, weight)
            wants = all(result.requires_grad for result in results)
            if wants:
                sum(result.sum() for result in results).backward()
            numbers = [*results, *([weight.grad] if wants else [])]
            seen[call] = [plain(n).detach().cpu().double().flatten().tolist() for n in numbers]
        torch._dynamo.reset()
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for call, want in expected.items():
            got = seen[call]
            if len(got) != len(want):
                return f"The results of the {call} call have lost their gradients. Does the callable run the graph?"
            for name, mine, right in zip(("first result", "second result", "gradient"), got, want, strict=True):
                if len(mine) != len(right):
                    return f"The {name} of the {call} call should have {len(right)} numbers; it has {len(mine)}."
                far = max(abs(a - b) for a, b in zip(mine, right, strict=True))
                if not far <= SAME * max(abs(b) for b in right):
                    return f"The {name} of the {call} call is off by up to {far:.2g}. Is each graph given its inputs?"
        return None


BACKEND = (CountsOperations, SaysWhichRan, ReturnsTheSameNumbers)
