"""Checks of a Function made safe: its forward and its backward pass compute in FP32 under autocast, and as before."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence

Function = type[torch.autograd.Function]
Safe = Callable[[Function, str], Function]
ENOUGH = 1e-5  # relative error of an FP32 product; 16 bits are off by 1e-3 and more


def _product() -> Function:
    """Return a new Function, which no answer has touched: x (n, d) times y (d, m)."""

    class Product(torch.autograd.Function):
        """Computes its products in the dtype that is chosen where it is called."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x @ y

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            return gradient @ y.T, x.T @ gradient

    return Product


def _errors(seed: int, function: Any, dtype: torch.dtype | None, inside: bool) -> Evidence:
    """Return how far value and gradients are from FP64's, with autocast to `dtype` (None: without autocast)."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(24, 24, generator=generator).requires_grad_() for _ in range(2))
    weights = torch.randn(24, 24, generator=generator)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        value = function.apply(x, y)
        if inside:
            (value.float() * weights).sum().backward()
    if not inside:
        (value.float() * weights).sum().backward()
    a, b, c = x.detach().double(), y.detach().double(), weights.double()
    pairs = {"value": (value, a @ b), "first": (x.grad, c @ b.T), "second": (y.grad, a.T @ c)}
    errors = {name: ((got.double() - true).norm() / true.norm()).item() for name, (got, true) in pairs.items()}
    return errors | {"dtype": str(value.dtype).removeprefix("torch.")}


class ForwardIsInFp32(Check):
    """Under autocast the forward pass computes in FP32."""

    hint = (
        "What does `torch.amp.custom_fwd` do with the forward pass of a Function?\n"
        "`torch.amp.custom_fwd(function.forward, device_type=..., cast_inputs=torch.float32)` makes a new forward pass."
    )

    @staticmethod
    def probe(seed: int, safe: Safe) -> Evidence:
        made = safe(_product(), "cpu")
        return {str(dtype): _errors(seed, made, dtype, inside=False) for dtype in (torch.bfloat16, torch.float16)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for dtype, errors in seen.items():
            if not errors["value"] <= ENOUGH:
                how = "computed in 16 bits, and cast afterwards" if errors["dtype"] == "float32" else "in 16 bits"
                return f"Under autocast to {dtype} the value is off by {errors['value']:.0e}: it is {how}."
            if errors["dtype"] != "float32":
                return f"Under autocast to {dtype} the value comes out in {errors['dtype']}."
        return None


class BackwardIsInFp32(Check):
    """The backward pass computes in FP32, even when it runs inside the autocast region."""

    hint = (
        "The backward pass needs a wrapper of its own.\n"
        "`torch.amp.custom_bwd(function.backward, device_type=...)` runs it as the forward pass was run."
    )

    @staticmethod
    def probe(seed: int, safe: Safe) -> Evidence:
        made = safe(_product(), "cpu")
        return {where: _errors(seed, made, torch.bfloat16, where == "inside") for where in ("inside", "outside")}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, errors in seen.items():
            for name in ("first", "second"):
                if not errors[name] <= ENOUGH:
                    return (
                        f"With `backward()` {where} the region, the gradient of the {name} input is off by "
                        f"{errors[name]:.0e}."
                    )
        return None


class WorksWithoutAutocast(Check):
    """Without autocast it does what the Function does, and the Function that was given stays as it was."""

    hint = "Make a new class that inherits from `torch.autograd.Function`, and leave the given one alone."

    @staticmethod
    def probe(seed: int, safe: Safe) -> Evidence:
        given = _product()
        before = given.forward, given.backward
        made = safe(given, "cpu")
        kept = (given.forward, given.backward) == before
        return {"kept": kept, "new": made is not given, **_errors(seed, made, None, inside=False)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["kept"]:
            return "The Function that was given has another forward or backward pass now."
        if not seen["new"]:
            return "You return the Function that was given. Make a new one."
        for name in ("value", "first", "second"):
            if not seen[name] <= ENOUGH:
                return f"Without autocast, the {name} result is off by {seen[name]:.0e}."
        return None


SAFE = (ForwardIsInFp32, BackwardIsInFp32, WorksWithoutAutocast)
