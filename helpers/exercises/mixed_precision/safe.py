"""Checks of a Function made safe: its forward and its backward pass compute in FP32 under autocast, and as before."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence

Function = type[torch.autograd.Function]
Safe = Callable[[Function, str], Function]
ENOUGH = 1e-5  # relative error of an FP32 product; 16 bits are off by 1e-3 and more
RESULTS = {"value": "value", "first": "gradient of the first input", "second": "gradient of the second input"}
NEEDS_BOTH = "`custom_bwd` reads what `custom_fwd` has noted in the forward pass: wrap the forward pass, too."


def _product() -> Function:
    """Return a new Function, which no answer has touched: x (n, d) times y (d, m)."""

    class Product(torch.autograd.Function):
        """Hands on FP32, whatever its products are computed in, so that no dtype is refused on the way."""

        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return (x @ y).float()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            x, y = (saved.float() for saved in ctx.saved_tensors)
            return (gradient @ y.T).float(), (x.T @ gradient).float()

    return Product


def _several() -> Function:
    """Return a Function with two outputs, and with arguments that are no floating-point tensors."""

    class Several(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor, rows: Tensor, times: int) -> tuple[Tensor, Tensor]:
            ctx.save_for_backward(x, y, rows)
            ctx.times = times
            return (x @ y).float(), times * x[rows].float()

        @staticmethod
        def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor | None, ...]:
            x, y, rows = ctx.saved_tensors
            to_x = (first @ y.float().T).float().index_add(0, rows, ctx.times * second.float())
            return to_x, (x.float().T @ first).float(), None, None

    return Several


def _several_errors(seed: int, function: Function) -> Evidence:
    """Return how far both values of `_several` and its gradients are from FP64's, under autocast."""
    generator = torch.Generator().manual_seed(seed)
    x, y, a, b = (torch.randn(24, 24, generator=generator) for _ in range(4))
    rows = torch.randperm(24, generator=generator)
    x, y = x.requires_grad_(), y.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, second = function.apply(x, y, rows, 3)
        ((first * a).sum() + (second * b).sum()).backward()
    exact = [t.detach().double().requires_grad_() for t in (x, y)]
    values = exact[0] @ exact[1], 3 * exact[0][rows]
    ((values[0] * a).sum() + (values[1] * b).sum()).backward()
    pairs = {
        "first output": (first, values[0]),
        "second output": (second, values[1]),
        "gradient of the first input": (x.grad, exact[0].grad),
        "gradient of the second input": (y.grad, exact[1].grad),
    }
    return {name: ((got.double() - true).norm() / true.norm()).item() for name, (got, true) in pairs.items()}


def _narrow(seed: int, function: Function) -> list[Tensor]:
    """Return value and gradients of a Function that is given BF16, without autocast."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(24, 24, generator=generator).bfloat16().requires_grad_() for _ in range(2))
    value = function.apply(x, y)
    value.sum().backward()
    return [value.detach(), x.grad, y.grad]


def _switches(safe: Safe, made_for: str, off: str) -> bool:
    """Whether a Function that is made for one device switches autocast off for device `off` in its forward pass."""
    enabled = []

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            enabled.append(torch.is_autocast_enabled(off))
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    made = safe(Asks, made_for)
    before = torch.is_autocast_enabled(off)
    torch.set_autocast_enabled(off, True)  # `torch.autocast` refuses where there is no such device
    try:
        made.apply(torch.ones(2))
    finally:
        torch.set_autocast_enabled(off, before)
    return enabled == [False]


def _errors(
    seed: int, function: Any, dtype: torch.dtype | None, inside: bool, inputs: torch.dtype = torch.float32
) -> Evidence:
    """Return how far value and gradients are from FP64's, with autocast to `dtype` (None: without autocast).

    Nothing is returned if the backward pass is wrapped and the forward pass is not: the two belong together.
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(24, 24, generator=generator).to(inputs).requires_grad_() for _ in range(2))
    weights = torch.randn(24, 24, generator=generator)
    try:
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            value = function.apply(x, y)
            if inside:
                (value * weights).sum().backward()
        if not inside:
            (value * weights).sum().backward()
    except AttributeError as error:
        if "_fwd_used_autocast" in str(error):  # custom_bwd looks for it
            return {}
        raise
    a, b, c = x.detach().double(), y.detach().double(), weights.double()
    pairs = {"value": (value, a @ b), "first": (x.grad, c @ b.T), "second": (y.grad, a.T @ c)}
    return {name: ((got.double() - true).norm() / true.norm()).item() for name, (got, true) in pairs.items()}


class ForwardIsInFp32(Check):
    """Under autocast the forward pass computes in FP32."""

    hint = (
        "What does `torch.amp.custom_fwd` do with the forward pass of a Function?\n"
        "`torch.amp.custom_fwd(function.forward, device_type=..., cast_inputs=torch.float32)` makes a new forward pass."
    )

    @staticmethod
    def probe(seed: int, safe: Safe) -> Evidence:
        made = safe(_product(), "cpu")
        halves = (torch.bfloat16, torch.float16)
        cases = {
            f"{dtype}, inputs in {inputs}": _errors(seed, made, dtype, inside=False, inputs=inputs)
            for dtype in halves
            for inputs in (torch.float32, dtype)
        }
        return {"cases": cases, "elsewhere": _switches(safe, "cpu", "cuda") and not _switches(safe, "cpu", "cpu")}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["elsewhere"]:
            return "Made for the CPU, it switches autocast off for CUDA alone: pass `device_type` on."
        for case in expected["cases"]:
            if not seen["cases"][case]:
                return NEEDS_BOTH
            off = seen["cases"][case]["value"]
            if not off <= ENOUGH:
                return f"Under autocast to {case}, the value is off by {off:.0e}: the product was computed in 16 bits."
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
        for where in expected:
            if not seen[where]:
                return NEEDS_BOTH
            for name in ("first", "second"):
                if not seen[where][name] <= ENOUGH:
                    why = "16 bits. Does your backward pass switch autocast off, as the forward pass does?"
                    return (
                        f"With `backward()` {where} the region, the {RESULTS[name]} is off by {seen[where][name]:.0e}, "
                        f"as in {why}"
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
        seen = {"kept": kept, "new": made is not given, "errors": _errors(seed, made, None, inside=False)}
        if not seen["errors"]:
            return seen
        results = zip(_narrow(seed, made), _narrow(seed, _product()), strict=True)
        return seen | {"as given": [torch.equal(mine, its) for mine, its in results]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["kept"]:
            return "The Function that was given has another forward or backward pass now."
        if not seen["new"]:
            return "You return the Function that was given. Make a new one."
        if not seen["errors"]:
            return NEEDS_BOTH
        for name, words in RESULTS.items():
            if not seen["errors"][name] <= ENOUGH:
                return f"Without autocast, the {words} is off by {seen['errors'][name]:.0e}."
        for words, same in zip(RESULTS.values(), seen["as given"], strict=True):
            if not same:
                return (
                    f"Without autocast and with inputs in BF16, the {words} is not what the Function gives. Its inputs "
                    "must reach it as they are: cast them only where autocast is on."
                )
        return None


class TakesAnyFunction(Check):
    """Functions with several outputs and with arguments of other kinds work, too, and each has a class of its own."""

    hint = (
        "`forward(ctx, *inputs)` and `backward(ctx, *gradients)` take as many as there are.\n"
        "Of the inputs, only floating-point tensors are cast. What is set on a class holds for all who use that class."
    )

    @staticmethod
    def probe(seed: int, safe: Safe) -> Evidence:
        first, second = safe(_several(), "cpu"), safe(_product(), "cpu")
        if first is second:
            return {"one class": True}
        return {"one class": False, "errors": _several_errors(seed, first)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["one class"]:
            return "Two calls of `safe` return the same class: the second Function has taken the first one's place."
        for name in expected["errors"]:
            if not seen["errors"][name] <= ENOUGH:
                return f"With two outputs, the {name} is off by {seen['errors'][name]:.0e} under autocast."
        return None


SAFE = (ForwardIsInFp32, BackwardIsInFp32, WorksWithoutAutocast, TakesAnyFunction)
