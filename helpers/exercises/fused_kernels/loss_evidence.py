"""What the checks of the chunked loss draw, note and compare: a loss and its two gradients."""

import math
from typing import Any

import torch
from torch import Tensor

from ...core.device import pick_device
from ..base import Evidence
from ..probing.distance import relative_distance


def drawn(
    seed: int, rows: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    """Return `hidden`, `weight` and labels, drawn from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    device = pick_device()
    hidden = torch.randn(rows, width, generator=generator).to(device, dtype).requires_grad_()
    weight = (torch.randn(vocabulary, width, generator=generator) / math.sqrt(width)).to(device, dtype).requires_grad_()
    return hidden, weight, torch.randint(vocabulary, (rows,), generator=generator).to(device)


def numbers(tensor: Tensor | None) -> list[float] | None:
    """Return the numbers of `tensor`, in a row."""
    return None if tensor is None else tensor.detach().double().cpu().flatten().tolist()


def evidence(loss: Any, hidden: Tensor, weight: Tensor) -> Evidence:
    """Return what a loss and its backward pass have left: its value, and the two gradients."""
    if not isinstance(loss, Tensor):
        return {"returned": type(loss).__name__}
    return {
        "loss": loss.item() if loss.numel() == 1 else math.nan,
        "shape": list(loss.shape),
        "dtype": str(loss.dtype),
        "hidden": numbers(hidden.grad),
        "weight": numbers(weight.grad),
        "types": [str(t.grad.dtype) for t in (hidden, weight) if t.grad is not None],
    }


def what_is_wrong(got: Evidence, want: Evidence, tolerance: float) -> str | None:
    """Say what differs in the loss or in the gradients."""
    if "returned" in got:
        return (
            f"it should return the loss, a tensor with one number; the returned value has the type {got['returned']}."
        )
    if got["shape"]:
        return f"the loss should be one number, of shape (); yours has the shape {tuple(got['shape'])}."
    if not abs(got["loss"] - want["loss"]) <= tolerance * (1 + abs(want["loss"])):
        known = want["loss"] and math.isfinite(got["loss"])
        times = f", {got['loss'] / want['loss']:.3g} times as large" if known else ""
        return f"the loss should be {want['loss']:.6g} and is {got['loss']:.6g}{times}."
    for name in ("hidden", "weight"):
        mine, right = got[name], want[name]
        if (mine is None) != (right is None):
            return (
                f"{name} gets no gradient and should." if mine is None else f"{name} should get no gradient; it does."
            )
        if right is None:
            continue
        if not any(right):
            if any(not abs(number) <= 1e-9 for number in mine):
                return f"the gradient of {name} should be zero everywhere and is not."
        elif not relative_distance(mine, right) <= tolerance:
            off = f"{relative_distance(mine, right):.2g} of its norm"
            return f"the gradient of {name} is not that of the full logits: off by {off}.{_scaled(mine, right)}"
    return None


def _scaled(mine: list[float], right: list[float]) -> str:
    """Say by which factor `mine` differs, if nothing else is wrong."""
    square = sum(b * b for b in right)
    factor = sum(a * b for a, b in zip(mine, right, strict=True)) / square if len(mine) == len(right) else 0.0
    if not math.isfinite(factor) or not any(mine):
        return " It is zero or not finite."
    same = relative_distance(mine, [factor * b for b in right]) <= 1e-3
    return f" It is {factor:.4g} times the correct one: which factor is missing?" if same else ""
