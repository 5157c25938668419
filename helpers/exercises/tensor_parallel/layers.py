"""Checks of the two functions for autograd, and of the layers made of them: values and gradients.

They are compared in FP64, where rounding does not hide a mistake. In FP32 and BF16, `conduct.py` checks the messages
and whether the ranks agree to the last bit.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ..base import Check, Evidence
from ..probing.on_ranks import on_ranks
from .conduct import IN, OUT
from .inputs import drawn, leaf
from .said import by_rank, noted, wrong_tensor

X_SHAPES = {"x of 1 dimension": (), "of 2 dimensions": (5,), "of 3 dimensions": (2, 3), "of 4 dimensions": (2, 1, 3)}
MISTAKES = {  # of the result, and of the gradient
    "Enter": (
        "is the sum over ranks; Enter should pass its tensor through",
        "is that of this rank alone: nothing was summed in the backward pass",
    ),
    "Leave": (
        "is this rank's part: nothing was summed",
        "is the sum over ranks; the gradient is already complete on each rank, so Leave should pass it through",
    ),
}


def _crossings(seed: int, Enter: Any, Leave: Any, *_: Any) -> Evidence:
    """One rank: values and gradients of both functions. What goes in, and what comes back, differs between ranks."""
    rank, seen = dist.get_rank(), {}
    for case, shape in {"1 dimension": (7,), "2 dimensions": (3, 4), "4 dimensions": (2, 1, 3, 2)}.items():
        xs, back = drawn(seed, *shape), drawn(seed + 1, *shape)
        x, sums = xs[rank], [sum(xs), sum(back)]
        for name, function in (("Enter", Enter), ("Leave", Leave)):
            before = leaf(x)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                y = function.apply(before * 1)  # not a leaf, as in a model
                (y * back[rank]).sum().backward()
            right = (x, sums[1]) if name == "Enter" else (sums[0], back[rank])
            other = (sums[0], back[rank]) if name == "Enter" else (x, sums[1])
            seen[f"{name}, {case}"] = {
                "got": [noted(y), noted(before.grad)],
                "right": [noted(t) for t in right],
                "other": [noted(t) for t in other],
                "behind autograd": any("autograd kernel was not registered" in str(one.message) for one in warned),
            }
    return seen


class SumsOneWayOnly(Check):
    """Enter passes its tensor through and sums the gradient; Leave sums its tensor and passes the gradient through."""

    hint = (
        "What does each rank hold at this place, and what would one process hold, forward and backward?\n"
        "Where the paths split, each rank has all of x but gets only a part of its gradient. Where they merge, "
        "each rank has a part of the output and the full gradient.\n"
        "`dist.all_reduce(t)` inside a static method of the Function, on a copy of the tensor: autograd does not "
        "record what happens there."
    )

    @staticmethod
    def probe(seed: int, *answers: Any) -> Evidence:
        return {"ranks": on_ranks(_crossings, 3, seed, *answers)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected["ranks"][0]:
            pairs = [(got[case], want[case]) for got, want in zip(seen["ranks"], expected["ranks"], strict=True)]
            mistakes = MISTAKES[case.partition(",")[0]]
            for i, what in enumerate(("the result", "the gradient of x")):
                texts = [
                    wrong_tensor(got["got"][i], want["right"][i], {mistakes[i]: want["other"][i]})
                    for got, want in pairs
                ]
                if said := by_rank(f"{case}, {what}", texts):
                    return f"{said}\nWhat would one process have at this place, forward and backward?"
            if any(got["behind autograd"] for got, _ in pairs):
                return (
                    f"{case}: PyTorch warned about a collective on a tensor that autograd tracks. "
                    "Call it inside the Function."
                )
        return None


def _layers(seed: int, __: Any, ___: Any, column: Any, row: Any) -> Evidence:
    """One rank: outputs and gradients of both layers, beside those of one process."""
    seen = {}
    for case, shape in X_SHAPES.items():
        seen[f"column, {case}"] = _layer(column, seed, (shape, "column", True, False))
        seen[f"row, {case}"] = _layer(row, seed, (shape, "row", True, True))
    seen["row without a bias"] = _layer(row, seed, ((2, 3), "row", True, False))
    seen["column, x needs no gradient"] = _layer(column, seed, ((2, 3), "column", False, False))
    seen["row, x needs no gradient"] = _layer(row, seed, ((2, 3), "row", False, True))
    return seen


def _layer(layer: Any, seed: int, kind: tuple[tuple[int, ...], str, bool, bool]) -> Evidence:
    """Run one layer on this rank; `kind` has the shape before x's features, which layer, and what x and bias are."""
    shape, name, x_learns, biased = kind
    rank, n = dist.get_rank(), dist.get_world_size()
    x, weight, bias, goal = (
        drawn(seed + i, *size)[0] for i, size in enumerate(((*shape, IN), (OUT, IN), (OUT,), (*shape, OUT)))
    )

    def cut(tensor: Tensor | None, dim: int) -> Tensor | None:
        return None if tensor is None else tensor.chunk(n, dim=dim)[rank]

    def gradients(function: Callable[..., Tensor], goal: Tensor, *inputs: Tensor) -> list[Tensor | None]:
        leaves = [leaf(t) for t in inputs]
        leaves[0].requires_grad_(x_learns)
        y = function(*(t * 1 for t in leaves))
        if y.requires_grad and y.shape == goal.shape:
            (y * goal).sum().backward()
        return [y.detach(), *(t.grad for t in leaves)]

    inputs = (x, weight, *([bias] if biased else []))
    right = gradients(lambda x, w, *b: F.linear(x, w, *b), goal, *inputs)
    if name == "column":
        got = gradients(layer, cut(goal, -1), x, cut(weight, 0))
        right = [cut(right[0], -1), right[1], cut(right[2], 0)]
        alone = [None, cut(goal, -1) @ cut(weight, 0), None]
    else:
        with_bias = layer if biased else lambda x, w: layer(x, w, None)
        got = gradients(with_bias, goal, cut(x, -1), cut(weight, 1), *inputs[2:])
        right = [right[0], cut(right[1], -1), cut(right[2], 1), *right[3:]]
        alone = [F.linear(cut(x, -1), cut(weight, 1), *inputs[2:]), None, None, None]
    names = ["the output", "the gradient of x", "the gradient of the weight", "the gradient of the bias"]
    if not x_learns:
        right[1] = None
    triples = zip(names, got, right, alone, strict=False)
    tensors = {what: [noted(g), noted(r), noted(a)] for what, g, r, a in triples if r is not None}
    return {"tensors": tensors, "bias": noted(bias) if biased else None}


class LayersOfOneProcess(Check):
    """Outputs and gradients of column and row are those of one process, for x of any number of dimensions."""

    hint = (
        "Which of Enter and Leave does a column layer need, and on which side of the matmul? And a row layer?\n"
        "`F.linear` takes an x of any number of dimensions.\n"
        "Add the bias after the sum; before the sum it would be added once per rank."
    )

    @staticmethod
    def probe(seed: int, *answers: Any) -> Evidence:
        return {"ranks": on_ranks(_layers, 3, seed, *answers)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, of_rank_0 in expected["ranks"][0].items():
            for what in of_rank_0["tensors"]:
                texts = []
                for got, want in zip(seen["ranks"], expected["ranks"], strict=True):
                    _, right, alone = want[case]["tensors"][what]
                    mistakes = {"is that of this rank alone": alone} if alone else {}
                    if what == "the output" and want[case]["bias"]:
                        mistakes |= _biased(right, want[case]["bias"], len(expected["ranks"]))
                    texts.append(wrong_tensor(got[case]["tensors"][what][0], right, mistakes))
                if said := by_rank(f"{case}, {what}", texts):
                    return f"{said}\nOn which side of the matmul is Enter or Leave, and where is the bias added?"
        return None


def _biased(right: Evidence, bias: Evidence, ranks: int) -> dict[str, Evidence]:
    """Return the outputs with the bias added on each rank, and with none."""
    y = torch.tensor(right["numbers"], dtype=torch.float64).view(right["shape"])
    b = torch.tensor(bias["numbers"], dtype=torch.float64)
    return {f"has the bias {ranks} times": noted(y + (ranks - 1) * b), "lacks the bias": noted(y - b)}


LAYERS = (SumsOneWayOnly, LayersOfOneProcess)
