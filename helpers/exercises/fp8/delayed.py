"""Checks of delayed scaling: the scale comes from earlier steps, and each step writes its amax into the history."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..base import Check, Evidence
from .casts import FORMATS, Reads

STEPS = 4  # of history


def _step(delayed_scale: Callable[..., Any], history: Tensor, x: Tensor, name: str) -> Evidence:
    """Note the scale that one step returns and what it leaves in `history`."""
    given = x.clone().requires_grad_()
    with Reads() as reads:
        scale = delayed_scale(history, given, FORMATS[name])
    seen: Evidence = {
        "untouched": torch.equal(given.detach().nan_to_num(7.0, 8.0, 9.0), x.nan_to_num(7.0, 8.0, 9.0)),
        "reads": reads.count,
        "graph": history.requires_grad or (isinstance(scale, Tensor) and scale.requires_grad),
        "returned": type(scale).__name__,
    }
    if isinstance(scale, Tensor):
        seen |= {"shape": list(scale.shape), "dtype": str(scale.dtype), "scale": float(scale.detach().flatten()[0])}
    return seen


def _run(delayed_scale: Callable[..., Any], amaxes: list[float], name: str, seed: int) -> list[Evidence]:
    """Run steps on tensors with these amaxes, from an empty history."""
    generator = torch.Generator().manual_seed(seed)
    histories = torch.zeros(2, STEPS)  # as a learner may keep them: one tensor, from which each step gets a row
    seen = []
    for step, amax in enumerate(amaxes):
        x = torch.rand(3, 5, generator=generator) * 0.9 * (amax if math.isfinite(amax) else 1.0)
        x[step % 3, step % 5] = -amax
        row = _step(delayed_scale, histories[0], x, name)
        seen.append(row | {"history": [repr(amax) for amax in histories[0].detach().tolist()]})
    return seen


def _drawn(seed: int) -> list[float]:
    """Return amaxes of very different size, the largest early, so that it drops out again, and later a zero."""
    generator = torch.Generator().manual_seed(seed)
    sizes = 2.0 ** torch.randint(-12, 8, (3 * STEPS,), generator=generator) * (
        1 + torch.rand(3 * STEPS, generator=generator)
    )
    sizes[2], sizes[6] = 1000.0, 0.0
    return sizes.tolist()


def _pairs(seen: Evidence, expected: Evidence) -> Iterator[tuple[str, Evidence, Evidence]]:
    for case, steps in expected.items():
        for number, (got, want) in enumerate(zip(seen[case], steps, strict=True), 1):
            yield f"{case}, step {number}", got, want


def _ordinary(seed: int, delayed_scale: Callable[..., Any]) -> Evidence:
    return {name: _run(delayed_scale, _drawn(seed), name, seed) for name in FORMATS}


def _wrong_scale(where: str, got: Evidence, want: Evidence) -> str | None:
    if "scale" not in got:
        return f"{where}: return the scale as a tensor; you return an object of type {got['returned']}."
    if got["shape"] or got["dtype"] != want["dtype"]:
        return f"{where}: the scale should be one number in torch.float32; it has shape {got['shape']}, {got['dtype']}."
    if math.isclose(got["scale"], want["scale"], rel_tol=1e-6):
        return None
    return f"{where}: the scale should be {want['scale']:.6g}; it is {got['scale']:.6g}."


class ScalesByEarlierSteps(Check):
    """The scale is the largest amax of the history as it was before the step, divided by the format's maximum."""

    hint = (
        "Two things happen in a step: read the history, then write to it. Which comes first?\n"
        "history.max() / torch.finfo(dtype).max, taken before this step's amax goes in."
    )
    after = ("writes_the_history",)
    probe = staticmethod(_ordinary)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, got, want in _pairs(seen, expected):
            if where.endswith("step 1"):
                continue  # judged by StartsFromItsOwnAmax
            wrong = _wrong_scale(where, got, want)
            if wrong:
                return f"{wrong} Did you include this step's amax, or an amax that has dropped out of the history?"
        return None


class StartsFromItsOwnAmax(Check):
    """While the history holds only zeros, the scale is current_scale(x, dtype)."""

    hint = "A maximum of zero would give the scale 0. Choose current_scale(x, dtype) with torch.where, without an `if`."
    after = ("writes_the_history", "scales_by_earlier_steps")

    @staticmethod
    def probe(seed: int, delayed_scale: Callable[..., Any]) -> Evidence:
        cases = {"a first step": [0.37], "a tensor of zeros": [0.0], "zeros, then numbers": [0.0, 3.0, 2.0]}
        return {
            f"{name}, {case}": _run(delayed_scale, amaxes, name, seed)
            for name in FORMATS
            for case, amaxes in cases.items()
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return next((wrong for rows in _pairs(seen, expected) if (wrong := _wrong_scale(*rows))), None)


class WritesTheHistory(Check):
    """Each step shifts the history in place: the newest amax comes first, the oldest drops out."""

    hint = (
        "The caller keeps its own `history`, so a new tensor with the same name does not change it.\n"
        "history.copy_(...) writes in place. Write torch.cat((amax[None], history[:-1]))."
    )
    probe = staticmethod(_ordinary)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_history(seen, expected)


def _wrong_history(seen: Evidence, expected: Evidence) -> str | None:
    for where, got, want in _pairs(seen, expected):
        if got["history"] != want["history"]:
            mine, right = (", ".join(f"{float(amax):.4g}" for amax in row["history"]) for row in (got, want))
            return f"{where}: after the step, the history should be [{right}]; it is [{mine}]."
    return None


class KeepsOutInfinityAndNan(Check):
    """An amax that is infinite or NaN leaves the history as it was."""

    hint = "An infinite amax would set the scale until it drops out of the history. Check amax.isfinite()."
    after = ("writes_the_history",)

    @staticmethod
    def probe(seed: int, delayed_scale: Callable[..., Any]) -> Evidence:
        return {name: _run(delayed_scale, [2.0, math.inf, 1.0, math.nan, 3.0], name, seed) for name in FORMATS}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_history(seen, expected)


class WaitsForNothing(Check):
    """No gradient flows through the scale, nothing waits for the GPU, and x is not changed."""

    hint = (
        "Use no `if`, no .item() and no Python list: torch.where decides on the GPU. x.detach() is outside the graph."
    )
    probe = staticmethod(_ordinary)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for where, got, _ in _pairs(seen, expected):
            if got["reads"]:
                values = f"{got['reads']} tensor value{'s' * (got['reads'] > 1)}"
                return f"{where}: Python reads {values}, and waits for the GPU each time."
            if got["graph"]:
                return f"{where}: the scale or the history is part of the autograd graph. Detach x."
            if not got["untouched"]:
                return f"{where}: x has changed; work on a copy."
        return None


DELAYED = (WritesTheHistory, ScalesByEarlierSteps, StartsFromItsOwnAmax, KeepsOutInfinityAndNan, WaitsForNothing)
