"""Checks of the backward pass of an FP8 product: formats, scales, what was saved, and what nobody needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence
from .product_log import ProductLog, wrong_call
from .products import drawn_matrices, wrong_gradient

LAST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


class _Scales:
    """Twice the current scale, which no other function returns; counts who asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        self.asked.append(str(dtype))
        return 2 * x.detach().abs().amax().float() / LAST[dtype]


@dataclass(frozen=True)
class _Case:
    """A way to call the product: what is saved in FP8, and who wants a gradient."""

    keep_x: bool = False
    keep_w: bool = False
    x: bool = True
    w: bool = True

    def run(self, seed: int, product: Any) -> Evidence:
        """Note the products and scales of the backward pass, and both gradients."""
        matrices = drawn_matrices(seed)
        x, w = (matrices[name].clone().requires_grad_(wanted) for name, wanted in (("x", self.x), ("w", self.w)))
        scale_of = _Scales()
        formats = {"x": torch.float8_e4m3fn, "w": torch.float8_e4m3fn, "g": torch.float8_e5m2}
        scales = {f"{name}'s": _Scales()(t, formats[name]) for name, t in matrices.items()}
        scales |= {"g_in_E4M3": _Scales()(matrices["g"], torch.float8_e4m3fn)}
        log = ProductLog(matrices, scales)
        y = product.apply(x, w, scale_of, log, self.keep_x, self.keep_w)
        forward, asked = len(log.calls), len(scale_of.asked)
        y.backward(matrices["g"])
        seen: Evidence = {"calls": log.calls[forward:], "asked": scale_of.asked[asked:]}
        for name, leaf in (("x", x), ("w", w)):
            seen[name] = {"returned": "None"}
            if leaf.grad is not None:
                shape, values = list(leaf.grad.shape), leaf.grad.float().flatten().tolist()
                seen[name] = {"shape": shape, "dtype": str(leaf.grad.dtype), "values": values}
        return seen


def _call_for(name: str, calls: list[Evidence]) -> Evidence | None:
    """Return the product that has the gradient of "x" (or "w") as its result, by its right side."""
    other = {"x": "w", "w": "x"}[name]
    return next((call for call in calls if call["names"][1] == other), None)


def _pairs(seen: Evidence, expected: Evidence) -> Iterator[tuple[str, Evidence, Evidence]]:
    for name in ("x", "w"):
        got, want = _call_for(name, seen["calls"]), _call_for(name, expected["calls"])
        if got and want:
            yield f"gradient of {name}", got, want


class TakesTheRightFormats(Check):
    """In both products g is in E5M2, and x and w are in E4M3."""

    hint = (
        "Hybrid: E4M3 forward, E5M2 backward. Only g is new in the backward pass.\n"
        "quantise(g, E5M2, its scale), once for both products; x and w in E4M3, as in the forward pass."
    )

    @staticmethod
    def probe(seed: int, product: Any) -> Evidence:
        return _Case().run(seed, product)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if len(seen["calls"]) != 2:
            return f"The backward pass should call ctx.product twice; it calls it {len(seen['calls'])} times."
        for name, got, want in _pairs(seen, expected):
            wrong = wrong_call(got, want, ("formats",))
            if wrong:
                return f"{name}: {wrong}."
        return None


class ScalesEachOperand(Check):
    """g gets a scale of its own, by ctx.scale_of and for E5M2, once; x and w keep those of the forward pass."""

    hint = (
        "Three tensors, three scales. Which of them are already there?\n"
        "ctx.scale_of(g, E5M2) is asked once; scale_x and scale_w were saved."
    )

    @staticmethod
    def probe(seed: int, product: Any) -> Evidence:
        return _Case().run(seed, product)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, got, want in _pairs(seen, expected):
            wrong = wrong_call(got, want, ("scales",))
            if wrong:
                return f"{name}: {wrong}."
        if seen["asked"] != expected["asked"]:
            return (
                f"The backward pass asks ctx.scale_of {len(seen['asked'])} times; each reads a whole tensor for its "
                "amax. Once, for g, is enough."
            )
        return None


class GivesEachItsGradient(Check):
    """x and w get their gradients, in this order, in BF16."""

    hint = (
        "backward returns one gradient for each input of forward, in their order; None for what is no tensor.\n"
        "gradient_of_x and gradient_of_w are written: call them."
    )

    @staticmethod
    def probe(seed: int, product: Any) -> Evidence:
        return _Case().run(seed, product)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in ("x", "w"):
            wrong = wrong_gradient(seen[name], expected[name])
            if wrong:
                return f"The gradient of {name} {wrong}"
        return None


class TakesWhatWasSaved(Check):
    """Whether x and w were saved in FP8 or as they came, the gradients are the same."""

    hint = (
        "Look at the dtype of what was saved.\n"
        "What is already in E4M3 must not be divided by its scale again; what is in BF16 must be quantised."
    )

    @staticmethod
    def probe(seed: int, product: Any) -> Evidence:
        cases = {"x": _Case(keep_x=True), "w": _Case(keep_w=True), "x and w": _Case(keep_x=True, keep_w=True)}
        return {f"{kept} saved in FP8": case.run(seed, product) for kept, case in cases.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for name in ("x", "w"):
                wrong = wrong_gradient(seen[case][name], want[name])
                if wrong:
                    return f"{case}: the gradient of {name} {wrong}"
        return None


class SkipsWhatNobodyNeeds(Check):
    """Where x or w needs no gradient, its product is not computed."""

    hint = (
        "A frozen weight, or the first layer's input: autograd throws such a gradient away, after it was paid for.\n"
        "ctx.needs_input_grad has a bool for each input of forward; return None where it is False."
    )

    @staticmethod
    def probe(seed: int, product: Any) -> Evidence:
        return {"x": _Case(x=False).run(seed, product), "w": _Case(w=False).run(seed, product)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            other = {"x": "w", "w": "x"}[name]
            if len(seen[name]["calls"]) != len(want["calls"]):
                return (
                    f"{name} needs no gradient here: the backward pass should compute {len(want['calls'])} product, "
                    f"and computes {len(seen[name]['calls'])}."
                )
            wrong = wrong_gradient(seen[name][other], want[other])
            if wrong:
                return f"Where {name} needs no gradient, that of {other} {wrong}"
        return None


BACKWARD = (TakesTheRightFormats, ScalesEachOperand, GivesEachItsGradient, TakesWhatWasSaved, SkipsWhatNobodyNeeds)
