"""Checks of the backward pass of an FP8 matmul: formats, scales, saved tensors, and gradients that are not needed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...meter.operations_seen import OperationWatch
from ..base import Check, Evidence
from .product_log import ProductLog, wrong_call
from .products import drawn_matrices, wrong_gradient

LAST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


class _Scales:
    """Twice the current scale, which no other function returns; counts the calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        self.asked.append(str(dtype))
        return 2 * x.detach().float().abs().amax() / LAST[dtype]


class _Casts(OperationWatch):
    """Counts the numbers that are rounded to E5M2; matrices of the shape of one of `others` do not count."""

    def __init__(self, *others: Tensor) -> None:
        super().__init__()
        self.others = [shape for t in others for shape in (t.shape, t.t().shape)]
        self.numbers = 0

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = [a for a in args if isinstance(a, Tensor)]
        copies = func.overloadpacket.__name__ in ("_to_copy", "copy_") and given and result.shape not in self.others
        if copies and result.dtype == torch.float8_e5m2 and given[-1].dtype != torch.float8_e5m2:
            self.numbers += result.numel()


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
        g = matrices["g"].clone()
        watched = [("g", g), ("x", x), ("w", w), *(("saved", t) for t in y.grad_fn.saved_tensors)]
        before = [t.detach().float().clone() for _, t in watched]
        with _Casts(x, w) as casts:
            y.backward(g)
        seen: Evidence = {"calls": log.calls[forward:], "asked": scale_of.asked[asked:]}
        seen["casts_of_g"] = casts.numbers / g.numel()
        pairs = zip(watched, before, strict=True)
        seen["changed"] = [name for (name, t), was in pairs if not torch.equal(t.detach().float(), was)]
        for name, leaf in (("x", x), ("w", w)):
            seen[name] = {"returned": "None"}
            if leaf.grad is not None:
                shape, values = list(leaf.grad.shape), leaf.grad.float().flatten().tolist()
                seen[name] = {"shape": shape, "dtype": str(leaf.grad.dtype), "values": values}
        return seen


def _call_for(name: str, calls: list[Evidence]) -> Evidence | None:
    """Return the product that has the gradient of "x" (or "w") as its result, or its transpose."""
    other = {"x": "w", "w": "x"}[name]
    return next((call for call in calls if {other, f"{other}.t()"} & set(call["names"])), None)


def _pairs(seen: Evidence, expected: Evidence) -> Iterator[tuple[str, Evidence, Evidence]]:
    for name in ("x", "w"):
        got, want = _call_for(name, seen["calls"]), _call_for(name, expected["calls"])
        if got and want:
            yield f"gradient of {name}", got, want


def _observe(seed: int, product: Any) -> Evidence:
    """Run the backward pass with nothing saved in FP8, and both gradients wanted."""
    return _Case().run(seed, product)


def _observe_each(seed: int, product: Any) -> Evidence:
    """Run it for each choice of what is saved in FP8."""
    cases = {"x": _Case(keep_x=True), "w": _Case(keep_w=True), "x and w": _Case(keep_x=True, keep_w=True)}
    seen = {f"{kept} saved in FP8": case.run(seed, product) for kept, case in cases.items()}
    return {"nothing saved in FP8": _Case().run(seed, product)} | seen


class TakesTheRightFormats(Check):
    """In both matmuls g is in E5M2, and x and w are in E4M3."""

    hint = (
        "The recipe is hybrid: E4M3 forward, E5M2 backward. Only g is new in the backward pass.\n"
        "Call quantize(g, E5M2, its scale) once, for both matmuls. x and w are in E4M3, as in the forward pass."
    )

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if len(seen["calls"]) != 2:
            return f"The backward pass calls ctx.product {len(seen['calls'])} times; it should call it twice."
        for name, got, want in _pairs(seen, expected):
            wrong = wrong_call(got, want, ("formats",))
            if wrong:
                return f"{name}: {wrong}."
        return None


class ScalesEachOperand(Check):
    """g gets its own E5M2 scale from one call to ctx.scale_of; x and w keep those of the forward pass."""

    hint = (
        "There are three tensors and three scales. Which scales do you already have?\n"
        "Call ctx.scale_of(g, E5M2) once; scale_x and scale_w were saved."
    )

    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, got, want in _pairs(seen, expected):
            wrong = wrong_call(got, want, ("scales",))
            if wrong:
                return f"{name}: {wrong}."
        if seen["asked"] != expected["asked"]:
            return (
                f"The backward pass calls ctx.scale_of {len(seen['asked'])} times. Each call reads an entire tensor to "
                "find its amax; one call, for g, is enough."
            )
        return None


class QuantizesGOnce(Check):
    """g is rounded to E5M2 once, for both matmuls."""

    hint = (
        "How many times do you quantize g?\n"
        "Compute g8 = quantize(g, E5M2, scale_g) before the two matmuls; gradient_of_w transposes it."
    )
    probe = staticmethod(_observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["casts_of_g"] <= expected["casts_of_g"]:
            return (
                f"The backward pass rounds {seen['casts_of_g']:.3g} times as many numbers to E5M2 as g has. "
                "Does each matmul quantize g again?"
            )
        return None


class GivesEachItsGradient(Check):
    """x and w get their gradients, in this order, in BF16."""

    hint = (
        "backward returns one gradient per input of forward, in order, and None for inputs that are not tensors.\n"
        "gradient_of_x and gradient_of_w are written: call them."
    )
    after = ("takes_the_right_formats", "scales_each_operand")

    probe = staticmethod(_observe)

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
        "Look at the dtype of the saved tensor.\n"
        "A tensor already in E4M3 must not be divided by its scale again; one in BF16 must be quantized."
    )
    after = ("takes_the_right_formats", "scales_each_operand", "gives_each_its_gradient")

    probe = staticmethod(_observe_each)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            for name in ("x", "w"):
                wrong = wrong_gradient(seen[case][name], want[name], _ABOUT_SAVED if "x" in case or "w" in case else "")
                if wrong:
                    return f"{case}: the gradient of {name} {wrong}"
        return None


_ABOUT_SAVED = "What happens to a saved tensor that is already in E4M3: is it divided or multiplied by its scale again?"


class SkipsWhatIsNotNeeded(Check):
    """If x or w needs no gradient, its matmul is not computed."""

    hint = (
        "Think of a frozen weight, or of the first layer's input: autograd discards their gradients.\n"
        "ctx.needs_input_grad has a bool for each input of forward; return None where it is False."
    )
    after = ("takes_the_right_formats", "scales_each_operand", "gives_each_its_gradient")

    @staticmethod
    def probe(seed: int, product: Any) -> Evidence:
        return {"x": _Case(x=False).run(seed, product), "w": _Case(w=False).run(seed, product)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            other = {"x": "w", "w": "x"}[name]
            if len(seen[name]["calls"]) != len(want["calls"]):
                return (
                    f"{name} needs no gradient here, so backward should call ctx.product once; it calls it "
                    f"{len(seen[name]['calls'])} times."
                )
            wrong = wrong_gradient(seen[name][other], want[other])
            if wrong:
                return f"If {name} needs no gradient, the gradient of {other} {wrong}"
        return None


class ChangesNothing(Check):
    """g, x, w and the saved tensors stay as they are."""

    hint = (
        "g may also be the gradient of another branch. Did an in-place operation (`mul_`, `div_`, `zero_`) change it?"
    )
    probe = staticmethod(_observe_each)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in expected:
            for name, what in (("g", "g"), ("x", "x"), ("w", "w"), ("saved", "a saved tensor")):
                if name in seen[case]["changed"]:
                    return f"{case}: the backward pass has changed {what}."
        return None


BACKWARD = (
    TakesTheRightFormats,
    ScalesEachOperand,
    QuantizesGOnce,
    GivesEachItsGradient,
    TakesWhatWasSaved,
    SkipsWhatIsNotNeeded,
    ChangesNothing,
)
