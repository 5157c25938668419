"""A linear layer, the learner's layer around it, and the two thin matrices that it should train."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..base import Evidence
from ..probing.distance import relative_distance

EXACT = 1e-6  # relative, in FP64: a correction that was computed in FP32 passes
INPUTS, OUTPUTS = 12, 7


@dataclass(frozen=True)
class Around:
    """What is looked at.

    Attributes:
        linear: a linear layer (12 -> 7) in FP64, as it was.
        given: the copy of it that the learner's layer got.
        layer: the learner's layer.
        x: inputs (2, 5, 12), drawn before the learner's layer could draw anything.
    """

    linear: nn.Linear
    given: nn.Linear
    layer: Any
    x: Tensor


def around(
    lora_linear: type[nn.Module], seed: int, sizes: tuple[int, float, float], bias: bool = True, outputs: int = OUTPUTS
) -> Around:
    """Put a layer of `sizes` (rank, alpha, dropout) around a linear layer."""
    torch.manual_seed(seed)
    linear, x = nn.Linear(INPUTS, outputs, bias=bias).double(), torch.randn(2, 5, INPUTS, dtype=torch.float64)
    given = copy.deepcopy(linear)
    return Around(linear, given, lora_linear(given, *sizes), x)


def flat(t: Tensor) -> list[float]:
    """Return all numbers of `t` as one list."""
    return t.detach().double().flatten().cpu().tolist()


def trained(layer: nn.Module) -> list[list[Any]]:
    """Return shape and dtype of each trained parameter, e.g. [[3, 12], "float64"]."""
    parameters = [p for p in layer.parameters() if p.requires_grad]
    return [[list(p.shape), str(p.dtype).removeprefix("torch.")] for p in parameters]


def is_adapter(seen: list[list[Any]], rank: int, outputs: int = OUTPUTS) -> bool:
    """Whether what is trained is A (rank, 12) and B (outputs, rank) in FP64, and nothing else."""
    return sorted(seen) == sorted([[[rank, INPUTS], "float64"], [[outputs, rank], "float64"]])


def wrong_adapter(seen: list[list[Any]], rank: int) -> str | None:
    """Say what of A (rank, 12) and B (7, rank) is missing, or what is trained besides them."""
    if sorted(shape for shape, _ in seen) != sorted([[rank, INPUTS], [OUTPUTS, rank]]):
        shapes = ", ".join(str(tuple(shape)) for shape, _ in seen) or "none"
        right = f"A ({rank}, {INPUTS}) and B ({OUTPUTS}, {rank})"
        return f"The trained parameters have the shapes {shapes}. Only {right} should be trained."
    for shape, dtype in seen:
        if dtype != "float64":
            name = "A" if shape[1] == INPUTS else "B"
            return f"{name} is {dtype}, but the layer's weight is float64. Give {name} the weight's dtype and device."
    return None


def thin(layer: nn.Module) -> tuple[nn.Parameter, nn.Parameter]:
    """Return A (rank, 12) and B (outputs, rank), told apart by their shapes, of a layer that trains nothing else."""
    A, B = sorted((p for p in layer.parameters() if p.requires_grad), key=lambda p: p.shape[1] != INPUTS)
    return A, B


def fill(layer: nn.Module, seed: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Set A and B to random numbers, as if they had been trained; return them."""
    A, B = thin(layer)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for p in (A, B):
            p.copy_(torch.randn(p.shape, dtype=torch.float64, generator=generator))
    return A, B


def inputs_of(linear: nn.Linear, A: Tensor, B: Tensor, x: Tensor) -> Evidence:
    """Return what the formula needs. The judge takes it from the reference's evidence, whose draws are the same."""
    bias = torch.zeros(len(linear.weight)) if linear.bias is None else linear.bias
    named = {"weight": linear.weight, "bias": bias, "A": A, "B": B, "x": x}
    return {name: flat(tensor) for name, tensor in named.items()}


def tensors_of(inputs: Evidence) -> list[Tensor]:
    """Return weight (outputs, 12), bias, A (rank, 12), B (outputs, rank) and x (n, 12), which take gradients."""
    outputs = len(inputs["bias"])
    shapes = {"weight": (-1, INPUTS), "bias": (-1,), "A": (-1, INPUTS), "B": (outputs, -1), "x": (-1, INPUTS)}
    return [
        torch.tensor(inputs[name], dtype=torch.float64).view(shape).requires_grad_() for name, shape in shapes.items()
    ]


def wrong_numbers(what: str, seen: list[float], right: list[float]) -> str | None:
    """Say how far a list of numbers is from the right one: missing, too long or short, or off."""
    if len(seen) != len(right):
        return f"{what} has {len(seen)} elements; it should have {len(right)}."
    if relative_distance(seen, right) <= EXACT:
        return None
    if not any(seen):
        return f"{what} is zero or missing."
    a, b = torch.tensor(seen), torch.tensor(right)
    off, length = relative_distance(seen, right), (a.norm() / b.norm()).item()
    if torch.cosine_similarity(a, b, dim=0) > 0.9999 and abs(length - 1) > 1e-4:
        return f"{what} has the right direction and {length:.6g} times the right norm."
    return f"{what} is off by {off:.2g} of its norm."
