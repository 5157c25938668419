"""Checks of a cast to FP8 and of the scale that goes with it."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...meter.operations_seen import OperationWatch
from ..base import Check, Evidence

FORMATS = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}


def _drawn(seed: int, *shape: int) -> Tensor:
    """Return FP32 numbers of many sizes, in powers of two from about 2^-12 to 2^12."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 2.0 ** (4 * torch.randn(shape, generator=generator))


def _cast(quantize: Callable[..., Any], x: Tensor, name: str, scale: Tensor | float) -> Evidence:
    """Note what `quantize` makes of `x` in the format called `name`."""
    given = x.clone()
    values = quantize(given, FORMATS[name], scale)
    if not isinstance(values, Tensor):
        return {"returned": type(values).__name__}
    return {
        "dtype": str(values.dtype),
        "shape": list(values.shape),
        "values": [repr(number) for number in values.detach().float().flatten().tolist()],
        "x": x.float().flatten().tolist(),
        "untouched": torch.equal(given.nan_to_num(7.0, 8.0, 9.0), x.nan_to_num(7.0, 8.0, 9.0)),
    }


def _off(seen: Evidence, expected: Evidence) -> str | None:
    for case, want in expected.items():
        got = seen[case]
        if "returned" in got:
            return f"{case}: return one tensor of FP8 values; you return an object of type {got['returned']}."
        if got["dtype"] != want["dtype"]:
            return f"{case}: the values should be {want['dtype']}; they are {got['dtype']}."
        if got["shape"] != want["shape"]:
            return f"{case}: the shape should stay {want['shape']}; it is {got['shape']}."
        if not got["untouched"]:
            return f"{case}: the tensor you were given has changed; work on a copy."
        for x, a, b in zip(want["x"], got["values"], want["values"], strict=True):
            if a != b:
                return f"{case}: {float(x):.6g} should become the value {b}; yours is {a}."
    return None


class RoundsToTheFormat(Check):
    """Each number is divided by the scale in FP32 and rounded once, to the given format."""

    hint = (
        "In which dtype does the division happen if x is BF16?\n"
        "x.float() comes first and .to(dtype) last; nothing in between may round."
    )

    @staticmethod
    def probe(seed: int, quantize: Callable[..., Any]) -> Evidence:
        return {case: _cast(quantize, *rest) for case, *rest in _ordinary(seed)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _off(seen, expected)


def _ordinary(seed: int) -> Iterator[tuple[str, Tensor, str, Tensor | float]]:
    x = _drawn(seed, 4, 40).clamp(-400, 400)
    for name in FORMATS:
        yield f"{name}, scale 1", x, name, 1.0
        yield f"{name}, a scale of 0.37 in FP32", 0.3 * x, name, torch.tensor(0.37)
        yield f"{name}, x in BF16, scale 0.0123", (0.01 * x).bfloat16(), name, torch.tensor(0.0123)
        yield f"{name}, one scale per row", x, name, torch.tensor([[1.3], [2.9], [5.7], [11.1]])


class SaturatesAndKeepsNan(Check):
    """A number above the format's maximum becomes the maximum, with its sign; NaN stays NaN."""

    hint = (
        "The cast alone treats large numbers differently in each format: look at its results for 1e6 above.\n"
        "Clamp between minus and plus torch.finfo(dtype).max after the division; a clamp leaves NaN as it is."
    )
    after = ("rounds_to_the_format",)

    @staticmethod
    def probe(seed: int, quantize: Callable[..., Any]) -> Evidence:
        x = torch.tensor([1e6, -1e6, 500.0, -470.0, 6e4, -6.2e4, 1.0, torch.inf, -torch.inf, torch.nan])
        cases = [(f"{name}, scale {scale:g}", name, scale) for name in FORMATS for scale in (1.0, 8.0)]
        return {case: _cast(quantize, x, name, scale) for case, name, scale in cases}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _off(seen, expected)


class Reads(OperationWatch):
    """Counts the values that Python reads: on a GPU it waits for each."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "is_nonzero", "nonzero", "equal")


def _scaled(current_scale: Callable[..., Any], x: Tensor, name: str) -> Evidence:
    given = x.clone().requires_grad_()
    with Reads() as reads:
        scale = current_scale(given, FORMATS[name])
    if not isinstance(scale, Tensor):
        return {"returned": type(scale).__name__}
    return {
        "shape": list(scale.shape),
        "dtype": str(scale.dtype),
        "graph": scale.requires_grad,
        "reads": reads.count,
        "untouched": torch.equal(given.detach(), x),
        "scale": float(scale.detach().float().flatten()[0]),
    }


class PutsTheAmaxOnTheMaximum(Check):
    """The scale is one FP32 number: the amax divided by the maximum of the given format."""

    hint = (
        "The amax is the largest magnitude, whatever its sign.\n"
        "x.detach().abs().amax().float() / torch.finfo(dtype).max"
    )

    @staticmethod
    def probe(seed: int, current_scale: Callable[..., Any]) -> Evidence:
        return {case: _scaled(current_scale, x, name) for case, x, name in _sizes(seed)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_scale(seen, expected)


def _sizes(seed: int) -> Iterator[tuple[str, Tensor, str]]:
    for name in FORMATS:
        x = _drawn(seed, 6, 10)
        x[2, 3] = -3 * x.abs().max()
        yield f"{name}, a negative number is the largest", x, name
        yield f"{name}, BF16", (1e-6 * x).bfloat16(), name
        yield f"{name}, numbers near 1e-20", 1e-20 * x, name


class HasACaseForZeros(Check):
    """A tensor of zeros gets the scale 1."""

    hint = "0 / 0 is NaN. Unlike an `if`, torch.where makes the choice without waiting for the GPU."

    @staticmethod
    def probe(seed: int, current_scale: Callable[..., Any]) -> Evidence:
        return {f"{name}, zeros": _scaled(current_scale, torch.zeros(3, 4), name) for name in FORMATS}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_scale(seen, expected)


def _wrong_scale(seen: Evidence, expected: Evidence) -> str | None:
    for case, want in expected.items():
        got = seen[case]
        if "returned" in got:
            return f"{case}: return a tensor; you return an object of type {got['returned']}."
        if got["shape"] or got["dtype"] != want["dtype"]:
            return (
                f"{case}: the scale should be one number in torch.float32 (shape []); it has shape {got['shape']} in "
                f"{got['dtype']}."
            )
        if not got["untouched"]:
            return f"{case}: the tensor you were given has changed; work on a copy."
        if got["reads"]:
            values = f"{got['reads']} tensor value{'s' * (got['reads'] > 1)}"
            return f"{case}: Python reads {values}, and waits for the GPU each time."
        if got["graph"]:
            return (
                f"{case}: the scale is part of the autograd graph. No gradient should flow through an amax: detach x."
            )
        if not math.isclose(got["scale"], want["scale"], rel_tol=1e-6):
            inverse = math.isclose(got["scale"] * want["scale"], 1, rel_tol=1e-6)
            said = " You return the inverse; in this lab, x is about scale times values." if inverse else ""
            return f"{case}: the scale should be {want['scale']:.6g}; it is {got['scale']:.6g}.{said}"
    return None


QUANTIZE = (RoundsToTheFormat, SaturatesAndKeepsNan)
SCALE = (PutsTheAmaxOnTheMaximum, HasACaseForZeros)
