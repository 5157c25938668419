"""Checks of part 1: the layer. Its numbers are compared in FP64 with the formula."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.plain import plain

EXACT = 1e-9  # relative, in FP64


def _flat(t: Tensor) -> list[float]:
    return t.detach().double().flatten().cpu().tolist()


def _layer(lora_linear: type[nn.Module], seed: int, rank: int, alpha: float, dropout: float = 0.0) -> Any:
    """Return a linear layer (12 -> 7) in FP64, the learner's layer around a copy of it, and rows x (5, 12)."""
    torch.manual_seed(seed)
    linear = nn.Linear(12, 7).double()
    return linear, lora_linear(copy.deepcopy(linear), rank, alpha, dropout), torch.randn(5, 12, dtype=torch.float64)


def _trained(layer: nn.Module) -> list[list[Any]]:
    """Return shape and dtype of each trained parameter, e.g. [[3, 12], "float64"]."""
    parameters = [p for p in layer.parameters() if p.requires_grad]
    return [[list(p.shape), str(p.dtype).removeprefix("torch.")] for p in parameters]


def _is_adapter(trained: list[list[Any]], rank: int) -> bool:
    """Whether what is trained is A (rank, 12) and B (7, rank) in FP64, and nothing else."""
    return sorted(trained) == sorted([[[rank, 12], "float64"], [[7, rank], "float64"]])


def _wrong_adapter(trained: list[list[Any]], rank: int) -> str | None:
    """Say what of A (rank, 12) and B (7, rank) is missing, or what is trained besides them."""
    if sorted(shape for shape, _ in trained) != sorted([[rank, 12], [7, rank]]):
        shapes = ", ".join(str(tuple(shape)) for shape, _ in trained) or "none"
        return f"Trained are parameters of shapes {shapes}; A ({rank}, 12) and B (7, {rank}) are right, and no others."
    for shape, dtype in trained:
        if dtype != "float64":
            name = "A" if shape[1] == 12 else "B"
            return f"{name} is {dtype} where the layer's weight is float64: give it the weight's dtype and device."
    return None


def _thin(layer: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    """Return A (rank, 12) and B (7, rank), told apart by their shapes, of a layer that trains nothing else."""
    A, B = sorted((p for p in layer.parameters() if p.requires_grad), key=lambda p: p.shape[1] != 12)
    return A, B


def _gradient(p: Tensor) -> Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad


def _fill(layer: nn.Module, seed: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Set A and B to random numbers, as if they had been trained."""
    A, B = _thin(layer)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in (A, B):
            p.copy_(torch.randn(p.shape, dtype=torch.float64, generator=generator))
    return A, B


def _inputs(linear: nn.Linear, A: Tensor, B: Tensor, x: Tensor) -> Evidence:
    """Return what the formula needs: all that the layer was given, before it had a chance to change it."""
    named = {"weight": linear.weight, "bias": linear.bias, "A": A, "B": B, "x": x}
    return {name: _flat(tensor) for name, tensor in named.items()}


def _tensors(inputs: Evidence) -> list[Tensor]:
    """Return weight (7, 12), bias (7,), A (rank, 12), B (7, rank) and x (n, 12), each with a gradient to come."""
    shapes = {"weight": (7, 12), "bias": (7,), "A": (-1, 12), "B": (7, -1), "x": (-1, 12)}
    return [
        torch.tensor(inputs[name], dtype=torch.float64).view(shape).requires_grad_() for name, shape in shapes.items()
    ]


class StartsAsTheBase(Check):
    """At first the layer gives the base's output exactly; only A and B are trained, and training can begin."""

    points = 1
    hint = (
        "Print name, shape, dtype and requires_grad of each parameter. One of the two thin matrices starts at zero, "
        "the other must not: which one is multiplied by the input first?"
    )

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        linear, layer, x = _layer(lora_linear, seed, 3, 6.0, 0.5)
        trained = _trained(layer)
        if not _is_adapter(trained, 3):
            return {"trained": trained}
        layer.train()
        same = torch.equal(plain(layer(x)), linear(x))
        A, B = _thin(layer)
        layer(x).square().sum().backward()
        return {
            "trained": trained,
            "same": same,
            "rank of A": int(torch.linalg.matrix_rank(A.detach())),
            "B": B.detach().abs().max().item(),
            "gradient of B": 0.0 if B.grad is None else B.grad.norm().item(),
            "base has gradients": any(p.grad is not None for p in layer.parameters() if p is not A and p is not B),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _wrong_adapter(seen["trained"], 3)
        if wrong:
            return wrong
        if seen["B"] != 0:
            return "B (out, r) does not start at zero: before its first step the layer already changes the output."
        if not seen["same"]:
            return "Before training, in training mode, the output is not that of the base. Does dropout touch the base?"
        if seen["rank of A"] == 0:
            return "A and B are both zero: each one's gradient is multiplied by the other, so neither will ever move."
        if seen["rank of A"] < 3:
            return f"A starts with rank {seen['rank of A']} where 3 was asked for: are its rows alike?"
        if not seen["gradient of B"] > 0:
            return "B gets no gradient."
        if seen["base has gradients"]:
            return "The base's weights got gradients: they are not frozen."
        return None


class CorrectsByAlphaOverRank(Check):
    """The output is x Wᵀ + bias + (alpha / rank) (x Aᵀ) Bᵀ, with right gradients; dropout only while training."""

    points = 1
    hint = (
        "Compare rank 2 and alpha 6 with rank 4 and alpha 6 by hand. nn.Dropout knows by itself when it is at work; "
        "F.dropout must be told: F.dropout(x, p, self.training)."
    )
    CASES = ((2, 6.0), (4, 6.0), (4, 1.0))  # rank and alpha
    DROPOUT = 0.25

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        cases, restless = [], False
        for rank, alpha in CorrectsByAlphaOverRank.CASES:
            linear, layer, x = _layer(lora_linear, seed, rank, alpha, 0.5)
            trained = _trained(layer)
            if not _is_adapter(trained, rank):
                return {"trained": trained, "rank": rank}
            A, B = _fill(layer, seed)
            inputs = _inputs(linear, A, B, x)
            layer.eval()
            restless |= not torch.equal(plain(layer(x)), layer(x))
            x.requires_grad_()
            y = layer(x)
            y.square().sum().backward()
            outcome = {
                "output": _flat(y),
                "gradient of A": _flat(_gradient(A)),
                "gradient of B": _flat(_gradient(B)),
                "gradient of x": _flat(_gradient(x)),
            }
            cases.append({"inputs": inputs, "outcome": outcome})
        return {"cases": cases, "restless": restless} | CorrectsByAlphaOverRank._dropout(seed, lora_linear)

    @staticmethod
    def _dropout(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        """Look at the correction of single inputs, in training mode, a hundred times."""
        linear, layer, _ = _layer(lora_linear, seed, 4, 6.0, CorrectsByAlphaOverRank.DROPOUT)
        A, B = _fill(layer, seed)
        layer.train()
        eye = torch.eye(12, dtype=torch.float64)  # a row is one input: its correction is whole, or none
        inputs = _inputs(linear, A, B, eye)
        corrections = torch.stack([layer(eye) - linear(eye) for _ in range(100)]).detach()  # (100, 12, 7)
        dropped = corrections.abs().amax(-1) < 1e-12  # (100, 12)
        whole = [corrections[~dropped[:, i], i] for i in range(12)]  # of each input those not dropped, (n, 7)
        return {
            "single inputs": inputs,
            "dropped": dropped.double().mean().item(),
            "least and most": [[_flat(rows.amin(0)), _flat(rows.amax(0))] if len(rows) else [] for rows in whole],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "trained" in seen:
            return _wrong_adapter(seen["trained"], seen["rank"])
        if seen["restless"]:
            return "Two calls in evaluation mode, with the same input, differ: dropout is at work there."
        for (rank, alpha), entry in zip(CorrectsByAlphaOverRank.CASES, seen["cases"], strict=True):
            case = f"rank {rank}, alpha {alpha:g}"
            for name, right in CorrectsByAlphaOverRank._right(entry["inputs"], alpha / rank).items():
                values = entry["outcome"][name]
                off = relative_distance(values, right)
                if name.startswith("gradient") and not any(values):
                    return f"{case}: there is no {name}."
                if not off <= EXACT:
                    a, b = (torch.tensor(numbers).norm().item() for numbers in (values, right))
                    return f"{case}, evaluation mode: the {name} is {off:.2g} off and {a / b:.3g} times as long."
        return CorrectsByAlphaOverRank._wrong_dropout(seen)

    @staticmethod
    def _right(inputs: Evidence, scale: float) -> dict[str, list[float]]:
        """Return the output by the formula, and the gradients of the sum of its squares."""
        weight, bias, A, B, x = _tensors(inputs)
        y = F.linear(x, weight, bias) + scale * (x @ A.T) @ B.T
        gradients = torch.autograd.grad(y.square().sum(), (A, B, x))
        names = ("output", "gradient of A", "gradient of B", "gradient of x")
        return {name: _flat(tensor) for name, tensor in zip(names, (y, *gradients), strict=True)}

    @staticmethod
    def _wrong_dropout(seen: Evidence) -> str | None:
        share = CorrectsByAlphaOverRank.DROPOUT
        _, _, A, B, eye = _tensors(seen["single inputs"])
        full = 6.0 / 4 * (eye @ A.T) @ B.T / (1 - share)  # (12, 7)
        for row, both in zip(full, seen["least and most"], strict=True):
            if not all(((torch.tensor(end, dtype=torch.float64) - row).abs() < 1e-9).all() for end in both):
                return (
                    "In training mode a single input is neither dropped nor kept at 1 / (1 - p) of its correction. "
                    "Dropout belongs in front of A."
                )
        if not abs(seen["dropped"] - share) <= 0.08:  # 1,200 draws: six standard deviations
            return f"With dropout 0.25, {seen['dropped']:.0%} of the inputs were dropped in training mode."
        return None


class MergesOnce(Check):
    """merge() writes the correction into the weight, unmerge() takes it out; calling either twice changes nothing."""

    points = 1
    hint = "The layer must remember whether it is merged, and its forward pass must look."
    CALLS = ("merged", "merged twice", "unmerged", "unmerged twice")

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        linear, layer, x = _layer(lora_linear, seed, 3, 6.0)
        trained = _trained(layer)
        if not _is_adapter(trained, 3):
            return {"trained": trained}
        A, B = _fill(layer, seed)
        inputs = _inputs(linear, A, B, x)
        layer.eval()
        with torch.no_grad():
            before, calls = _flat(layer(x)), []
            for call in MergesOnce.CALLS:
                layer.unmerge() if call.startswith("unmerged") else layer.merge()
                weight = next(p for p in layer.parameters() if tuple(p.shape) == (7, 12))
                layer.train(call == "merged twice")  # no dropout here: the mode must make no difference
                calls.append(
                    {
                        "frozen": not weight.requires_grad,
                        "output": _flat(layer(x)),
                        "weight": _flat(weight),
                        "A": _flat(A),
                        "B": _flat(B),
                    }
                )
        return {"trained": trained, "inputs": inputs, "output before": before, "calls": calls}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = _wrong_adapter(seen["trained"], 3)
        if wrong:
            return wrong
        inputs = seen["inputs"]
        weight, bias, A, B, x = _tensors(inputs)
        merged = weight + 2.0 * B @ A
        output = _flat(F.linear(x, merged, bias))
        off = relative_distance(seen["output before"], output)
        if not off <= EXACT:
            return f"The output before is {off:.2g} off, relative."
        for call, after in zip(MergesOnce.CALLS, seen["calls"], strict=True):
            if not after["frozen"]:
                return f"{call.capitalize()}, the linear layer's weight is trained."
            right = inputs["weight"] if call.startswith("unmerged") else _flat(merged)
            for name, values, target in (("output", after["output"], output), ("weight", after["weight"], right)):
                off = relative_distance(values, target)
                if not off <= EXACT:
                    return f"The {name} {call} is {off:.2g} off, relative."
            if not relative_distance(after["A"] + after["B"], inputs["A"] + inputs["B"]) <= EXACT:
                return f"{call.capitalize()}, A or B is not what it was before."
        return None


LAYER = (StartsAsTheBase, CorrectsByAlphaOverRank, MergesOnce)
