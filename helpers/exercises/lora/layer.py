"""The layer: a frozen linear layer and beside it a correction of low rank."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance

TOLERANCE = 1e-9  # relative, in FP64
RANK, ALPHA = 3, 12.0
_TRANSPOSED = "rows that are a transposed view"
_ONE_ROW = "one row, x of shape (12,)"


def _filled(LoRA: Callable[..., Any], seed: int, bias: bool) -> tuple[Any, Tensor]:
    """Return a layer (12 -> 7) whose A and B are random, and rows x (2, 5, 12), all in FP64."""
    torch.manual_seed(seed)
    layer = LoRA(nn.Linear(12, 7, bias=bias, dtype=torch.float64), RANK, ALPHA)
    torch.manual_seed(seed + 1)  # however many numbers the layer has drawn
    with torch.no_grad():
        layer.A.copy_(torch.randn(RANK, 12))
        layer.B.copy_(torch.randn(7, RANK))
    return layer, torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)


class AddsTheCorrection(Check):
    """The output is the frozen layer's, bias included, plus (alpha / rank) · (x Aᵀ) Bᵀ; A, B and x get gradients."""

    hint = (
        "x has shape (..., in), A (r, in), and B (out, r). So F.linear(x, A) is x Aᵀ, of shape (..., r). "
        "self.linear(x) is the output of the base, and self.scale is alpha / rank."
    )

    @staticmethod
    def probe(seed: int, LoRA: Callable[..., Any]) -> Evidence:
        seen = {}
        for name, bias in (("without a bias", False), ("with a bias", True), (_TRANSPOSED, True), (_ONE_ROW, True)):
            layer, leaf = _filled(LoRA, seed, bias)
            leaf = leaf[0, 0].detach().requires_grad_() if name == _ONE_ROW else leaf
            x = leaf.transpose(0, 1).contiguous().transpose(0, 1) if name == _TRANSPOSED else leaf
            before = x.detach().clone()
            y = layer(x)
            changed = not torch.equal(x.detach(), before)
            base, low = layer.linear(x), x @ layer.A.T  # (2, 5, 7), (2, 5, 3): the judge looks for well-known slips
            slips = {
                "The correction is missing": base,
                "The base is missing": y.new_zeros(base.shape) + ALPHA / RANK * (low @ layer.B.T),
                "The correction is not multiplied by alpha / rank": base + low @ layer.B.T,
                "The correction is multiplied by alpha, not by alpha / rank": base + ALPHA * (low @ layer.B.T),
                "The bias is missing": base - (layer.linear.bias if bias else 0) + ALPHA / RANK * (low @ layer.B.T),
            }
            if y.requires_grad:
                y.square().sum().backward()
            gradients = {"A": layer.A.grad, "B": layer.B.grad, "x": leaf.grad}
            seen[name] = {
                "shape": list(y.shape),
                "given": list(x.shape),
                "changed": changed,
                "y": y.detach().flatten().tolist(),
                "slips": {say: t.detach().flatten().tolist() for say, t in slips.items()},
                "gradients": {n: [] if g is None else g.flatten().tolist() for n, g in gradients.items()},
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            got = seen[name]
            if got["shape"] != want["shape"]:
                given, right = tuple(want["given"]), tuple(want["shape"])
                return f"{name}: x of shape {given} gives {tuple(got['shape'])}; expected {right}."
            if got["changed"]:
                return f"{name}: the layer has changed its input x."
            off = relative_distance(got["y"], want["y"])
            if not off <= TOLERANCE:
                slips = [say for say, y in want["slips"].items() if relative_distance(got["y"], y) <= TOLERANCE]
                slip = [*slips, "Compare your code with the formula, term by term"][0]
                return f"{name}: the output is off by {off:.2g} (relative). {slip}."
            for which, gradient in want["gradients"].items():
                off = relative_distance(got["gradients"][which], gradient)
                if not off <= TOLERANCE:
                    wrong = f"the gradient of {which} is missing, or off by {off:.2g} (relative)"
                    return f"{name}: {wrong}. Was something detached?"
        return None


class StaysThin(Check):
    """No matrix as large as the weight is created, and the frozen layer gets no gradients."""

    hint = (
        "B A has the shape of the weight; (x Aᵀ) Bᵀ passes through r values per row. Which pair do you multiply first?"
    )

    @staticmethod
    def probe(seed: int, LoRA: Callable[..., Any]) -> Evidence:
        torch.manual_seed(seed)
        layer, x = LoRA(nn.Linear(1024, 1024), 2, 4.0), torch.randn(4, 1024)
        with MemoryMeter() as meter:
            y = layer(x)
            if y.requires_grad:
                y.sum().backward()
        return {
            "peak": meter.peak_bytes,
            "weight": layer.linear.weight.nbytes,
            "trained": [n for n, p in layer.linear.named_parameters() if p.requires_grad or p.grad is not None],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["trained"]:
            return f"The frozen layer's {' and '.join(seen['trained'])} requires a gradient, or got one."
        more = seen["peak"] - expected["peak"]  # both count what was given
        if not more < 0.5 * expected["weight"]:
            return f"The layer allocates {more:,} bytes more than it needs; the weight takes {expected['weight']:,}."
        return None


LAYER = (AddsTheCorrection, StaysThin)
