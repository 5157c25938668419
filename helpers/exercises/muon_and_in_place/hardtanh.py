"""Check of Hardtanh in place: its results, its memory, and whether autograd knows that it has overwritten a tensor."""

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.device import pick_device
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.plain import plain

Function = type[torch.autograd.Function]
EXACT = 1e-6
ROOM = 0.1  # of the tensor's bytes; a mask would take a quarter


def _drawn(seed: int, numbers: int = 400) -> Tensor:
    """Return numbers on both sides of -1 and 1, and some that are exactly there, or right beside."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.tensor([-1.0, 1.0, -1.0 - 1e-6, 1.0 + 1e-6, -1.0 + 1e-6, 1.0 - 1e-6, 0.0, -5.0, 5.0])
    return torch.cat([edges, 1.5 * torch.randn(numbers, generator=generator)]).to(pick_device())


class LimitsAsHardtanh(Check):
    """Results and gradients equal those of `F.hardtanh`, and the gradient that comes in is not changed."""

    hint = (
        "Print the derivative at -1, 0 and 1. It is 0 at both ends.\n"
        "Multiply the incoming gradient by what `y.abs() < 1` gives, into a new tensor."
    )
    compared = False

    @staticmethod
    def probe(seed: int, function: Function) -> Evidence:
        w = _drawn(seed).requires_grad_()
        weights = 1 + torch.rand(len(w), generator=torch.Generator().manual_seed(seed)).to(w.device)
        (wanted,) = torch.autograd.grad((F.hardtanh(w * 1) * weights).sum(), w)
        came: list[tuple[Tensor, Tensor]] = []
        y = function.apply(w * 1)
        if not isinstance(y, Tensor):
            return {"returned": type(y).__name__}
        y.register_hook(lambda gradient: came.append((gradient, gradient.clone())))
        (mine,) = torch.autograd.grad((y * weights).sum(), w)
        return {
            "results": relative_distance(_numbers(y), _numbers(F.hardtanh(w * 1))),
            "gradients": relative_distance(_numbers(mine), _numbers(wanted)),
            "changed": any(not torch.equal(gradient, was) for gradient, was in came),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "returned" in seen:
            return f"`apply` returns a {seen['returned']} instead of the limited tensor."
        if not seen["results"] <= EXACT:
            return f"The results are off by {seen['results']:.2g} of their norm. Is each number limited to -1 ... 1?"
        if not seen["gradients"] <= EXACT:
            return (
                f"The gradient is off by {seen['gradients']:.2g} of its norm. Where is the output strictly between "
                "-1 and 1?"
            )
        if seen["changed"]:
            return "`backward` has changed the gradient that it was given. Another operation may need it."
        return None


def _numbers(tensor: Tensor) -> list[float]:
    return plain(tensor.detach()).cpu().double().flatten().tolist()


class OverwritesItsInput(Check):
    """`forward` returns the tensor that it was given, limited, and allocates nothing of its size."""

    hint = (
        "Which operations end in an underscore, and overwrite their tensor?\n"
        "`x.clamp_(-1, 1)` allocates nothing. Return `x` itself."
    )
    compared = False

    @staticmethod
    def probe(seed: int, function: Function) -> Evidence:
        x = _drawn(seed, 20_000).requires_grad_() * 2
        wanted = F.hardtanh(x.detach())
        with MemoryMeter(device=x.device) as meter:
            x.detach().add_(0)  # the meter counts what was touched
            y = function.apply(x)
        return {
            "there": isinstance(y, Tensor) and y.data_ptr() == x.data_ptr() and torch.equal(x.detach(), wanted),
            "new": (meter.peak_bytes - x.nbytes) / x.nbytes,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["there"]:
            return "The result is not in the memory of `x`. Overwrite `x`, and return it."
        if not seen["new"] <= ROOM:
            return f"`forward` allocates {seen['new']:.2f} times the bytes of `x`. Which line makes a new tensor?"
        return None


class KeepsTheResultAlone(Check):
    """For the backward pass only the result is kept: no input, no mask."""

    hint = (
        "What is alive after the forward pass, besides the result?\n"
        "Overwrite `x`, then call `ctx.save_for_backward(x)`: this keeps no second tensor."
    )
    compared = False

    @staticmethod
    def probe(seed: int, function: Function) -> Evidence:
        w = _drawn(seed, 20_000).requires_grad_()
        with MemoryMeter(device=w.device) as meter:
            w.detach().add_(0)
            y = function.apply(w * 2)  # a factor saves nothing of its result
            gc.collect()
        alive = sum(block.nbytes for block in meter.lifetimes if block.end is None)
        return {"kept": (alive - w.nbytes) / w.nbytes, "result": isinstance(y, Tensor)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["kept"] <= 1 + ROOM:
            return (
                f"After the forward pass {seen['kept']:.2f} times the bytes of the result are alive; with the result "
                "alone it should be 1. What else is kept for the backward pass?"
            )
        return None


def _error(program: Callable[[], Any]) -> str:
    try:
        program()
    except RuntimeError as error:
        return str(error).splitlines()[0][:120]
    return ""


class AutogradKnows(Check):
    """Autograd knows that `x` is overwritten and what is saved: it refuses what would give a wrong gradient."""

    hint = (
        "Which call tells autograd that `forward` has overwritten `x`?\n"
        "`ctx.mark_dirty(x)`. And `ctx.save_for_backward` saves the version, too; an attribute of `ctx` does not.\n"
        "Autograd does not see a change through `.data`: change `x` itself, and mark it."
    )
    compared = False

    @staticmethod
    def probe(seed: int, function: Function) -> Evidence:
        w = _drawn(seed)

        def saved_before() -> None:
            x = w.clone().requires_grad_().exp()  # exp saves its result
            function.apply(x).sum().backward()

        def changed_afterwards() -> None:
            y = function.apply(w.clone().requires_grad_() * 2)
            y.mul_(2)  # a factor does not need what it overwrites
            y.sum().backward()

        leaf = w.clone().requires_grad_()
        through, result = w.clone().requires_grad_(), w.clone().requires_grad_()
        x = through * 2
        function.apply(x)
        x.sum().backward()
        y = function.apply(result * 2)
        if not isinstance(y, Tensor):
            return {"returned": type(y).__name__}
        y.sum().backward()
        return {
            "leaf": _error(lambda: function.apply(leaf)),
            "before": _error(saved_before),
            "afterwards": _error(changed_afterwards),
            "through": relative_distance(_numbers(through.grad), _numbers(result.grad)),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "returned" in seen:
            return "Not judged until `apply` returns a tensor: see the first check."
        if not seen["before"]:
            return "An earlier operation had saved `x`, and the backward pass raised no error: its gradient is wrong."
        if not seen["leaf"]:
            return (
                "A leaf that requires a gradient was overwritten without an error. Does autograd know about the change?"
            )
        if not seen["through"] <= EXACT:
            return (
                f"The gradient through the variable `x` differs from that through the result by {seen['through']:.2g} "
                "of its norm: to autograd, `x` is still what it was before the call."
            )
        if not seen["afterwards"]:
            return (
                "The result was changed after the call, and the backward pass raised no error. Is it saved with its "
                "version?"
            )
        return None


HARDTANH = (LimitsAsHardtanh, OverwritesItsInput, KeepsTheResultAlone, AutogradKnows)
