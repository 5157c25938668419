"""Checks of the two matmuls in the backward pass of a linear layer, whose operands are given."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from .product_log import ProductLog, wrong_call

M, K, N = 24, 16, 40  # tokens, in, out: no two agree, so that a shape tells which is which
FORMULAS = {"gradient_of_x": "g (M, N) times w (N, K)", "gradient_of_w": "g transposed (N, M) times x (M, K)"}


def drawn_matrices(seed: int) -> dict[str, Tensor]:
    """Return x (M, K), w (N, K) and g (M, N) in BF16, far apart in size."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"x": ((M, K), 2.0), "w": ((N, K), 0.1), "g": ((M, N), 3e-5)}
    return {name: (s * torch.randn(shape, generator=generator)).bfloat16() for name, (shape, s) in sizes.items()}


def _run(seed: int, gradient_of_x: Callable[..., Any], gradient_of_w: Callable[..., Any]) -> Evidence:
    matrices = drawn_matrices(seed)
    formats = {"x": torch.float8_e4m3fn, "w": torch.float8_e4m3fn, "g": torch.float8_e5m2}
    scales = {n: t.abs().amax().float() / torch.finfo(formats[n]).max for n, t in matrices.items()}
    values = {n: (t.float() / scales[n]).to(formats[n]) for n, t in matrices.items()}
    seen: Evidence = {}
    for name, function, other in (("gradient_of_x", gradient_of_x, "w"), ("gradient_of_w", gradient_of_w, "x")):
        log = ProductLog(values, scales)
        answer = function(values["g"], scales["g"], values[other], scales[other], log)
        seen[name] = {"calls": log.calls, "returned": type(answer).__name__}
        if isinstance(answer, Tensor):
            seen[name] |= {"shape": list(answer.shape), "dtype": str(answer.dtype)}
            seen[name]["values"] = answer.float().flatten().tolist()
    return seen


class MultipliesTheRightMatrices(Check):
    """Each gradient is one matmul of FP8 matrices: g by w for x, g transposed by x for w (or its transpose)."""

    hint = (
        "Write down the shapes: x and its gradient are (M, K), w and its gradient are (N, K), and g is (M, N).\n"
        "A matmul sums over its inner dimension: outputs (N) for the gradient of x, tokens (M) for that of w.\n"
        "Pass each FP8 matrix either unchanged or as .t(); its scale is the same in both cases."
    )

    probe = staticmethod(_run)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            calls = seen[name]["calls"]
            if len(calls) != 1:
                return f"{name} should call `product` once, not {len(calls)} times. The gradient is {FORMULAS[name]}."
            wrong = wrong_call(calls[0], want["calls"][0], ("names", "formats"))
            if wrong:
                return f"{name}: {wrong}. The gradient is {FORMULAS[name]}."
        return None


class HandsOverBothScales(Check):
    """Each matrix is passed with its own scale."""

    hint = "product(a, scale_a, b, scale_b): each matrix is followed by its scale."

    probe = staticmethod(_run)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            for got in seen[name]["calls"][:1]:
                wrong = wrong_call(got, want["calls"][0], ("scales",))
                if wrong:
                    return f"{name}: {wrong}."
        return None


class ReturnsTheProduct(Check):
    """Each function returns what `product` returns: BF16, with the shape of the tensor whose gradient it is."""

    hint = "`product` already multiplies by both scales and returns BF16."
    after = ("multiplies_the_right_matrices", "hands_over_both_scales")

    probe = staticmethod(_run)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            wrong = wrong_gradient(seen[name], want)
            if wrong:
                return f"{name} {wrong}"
        return None


def wrong_gradient(got: Evidence, want: Evidence, ask: str = "") -> str | None:
    """Compare a gradient with the right one: its shape, its dtype, its numbers, whose cause it can `ask` about."""
    if "values" not in got:
        return f"should be a tensor; it is {got['returned']}."
    if got["shape"] != want["shape"]:
        return f"should have shape {want['shape']}; it has {got['shape']}."
    if got["dtype"] != want["dtype"]:
        return f"should be {want['dtype']}; it is {got['dtype']}."
    off = relative_distance(got["values"], want["values"])
    if off <= 1e-6:
        return None
    mine, right = (torch.tensor(each["values"], dtype=torch.float64) for each in (got, want))
    times = float(mine @ right / (right @ right))
    if relative_distance(got["values"], (times * right).tolist()) <= 0.01:  # BF16 rounds once more
        return f"is {times:.4g} times the right one. {ask or 'Was a scale applied twice, or not at all?'}"
    ask = ask or "Check which matrices are multiplied, and in which formats."
    return f"is off by {off:.2g} of its norm. {ask}"


PRODUCTS = (MultipliesTheRightMatrices, HandsOverBothScales, ReturnsTheProduct)
