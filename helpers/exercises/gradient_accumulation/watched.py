"""A model that notes what it is fed and when gradients pass back through it, and comparisons of gradients."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..base import Evidence
from ..probing.distance import relative_distance

EXACT = 1e-6  # relative; room for a weight that somebody has rounded to FP32, and for no wrong divisor
LEFT_BEFORE = 0.5  # what stands in each .grad before the answer is called, where that is looked at


class Watched:
    """Notes the rows of each forward call of `model`, and the order of forward and backward passes."""

    def __init__(self, model: nn.Module) -> None:
        self.rows: list[int] = []
        self.order: list[str] = []
        self.first: list[float] = []  # a number of the first row of each call: which rows came when
        model.register_forward_hook(self._forward)

    def _forward(self, _: nn.Module, args: tuple[Tensor, ...], outputs: Tensor) -> None:
        self.rows.append(len(args[0]))
        self.first.append(float(args[0].flatten()[0]))
        self.order.append("forward")
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: self.order.append("backward"))


def gradient_of(model: nn.Module) -> list[float]:
    """Return all gradients of `model` as one list; zeros where there is none."""
    found = (torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())
    return torch.cat([gradient.flatten() for gradient in found]).tolist()


def set_gradients(model: nn.Module, value: float | None) -> None:
    """Set all entries of all gradients of `model` to `value`; None: there are no gradients."""
    for p in model.parameters():
        p.grad = None if value is None else torch.full_like(p, value)


def number(loss: Any) -> Evidence:
    """Describe a returned loss: its value, its dimensions, and whether it still requires a gradient."""
    if loss is None:
        return {"returned": "nothing"}
    attached = bool(getattr(loss, "requires_grad", False))
    value = float(loss.detach() if attached else loss)
    return {"value": value, "attached": attached, "shape": list(getattr(loss, "shape", ()))}


def wrong_gradient(seen: list[float], right: list[float], mistakes: Mapping[str, list[float]]) -> str | None:
    """Say how a gradient differs from the right one: as one of the `mistakes` does, in length alone, or in direction.

    Args:
        mistakes: by what to say of it, the gradient that a well-known mistake leaves.
    """
    if relative_distance(seen, right) <= EXACT:
        return None
    for name, gradient in mistakes.items():
        if relative_distance(seen, gradient) <= EXACT:
            return name
    mine, want = torch.tensor(seen), torch.tensor(right)
    if not mine.isfinite().all():
        return "the gradient has entries that are no numbers (NaN or infinity)."
    if not mine.any():
        return "no gradient was left in .grad."
    length, cosine = (mine.norm() / want.norm()).item(), torch.cosine_similarity(mine, want, dim=0).item()
    if cosine > 0.9999:
        return f"the gradient points the right way and is {length:.4g} times as long as the whole batch's."
    return f"the gradient is not the whole batch's: cosine {cosine:.4f}, {length:.4g} times as long."


def wrong_loss(seen: Evidence, right: float) -> str | None:
    """Say what is wrong with a returned loss."""
    if "returned" in seen:
        return "nothing was returned; the mean loss is wanted."
    if not abs(seen["value"] - right) <= EXACT * abs(right):  # NaN is caught, too
        return f"you return {seen['value']:.6g}; the mean loss is {right:.6g}."
    if seen["attached"]:
        return "the returned loss still hangs on its graph, which keeps memory: return loss.detach()."
    if seen["shape"]:
        return f"you return a tensor of shape {seen['shape']}; a number is wanted, or a tensor without dimensions."
    return None
