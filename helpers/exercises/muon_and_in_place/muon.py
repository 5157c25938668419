"""Check of Muon's step: its formulas, its bytes between steps, and what a step holds."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..lean_optimizers.ways import drawn_parameters, way
from ..probing.distance import relative_distance

MakeMuon = Callable[..., torch.optim.Optimizer]
RATE = 0.02
SHAPES = {"12 x 12": (12, 12), "wide, 8 x 20": (8, 20), "tall, 20 x 8": (20, 8)}
SAME = 1e-3  # relative, of the change; other orders of summation differ by less, after six steps too
FALLING = tuple({"lr": rate} for rate in (0.02, 0.016, 0.012, 0.008, 0.004, 0.002))
SIX, SCHEDULE, GROUPS = "six steps", "a falling learning rate", "a second group, with a rate of its own"
LATE, PAUSED = "from the third step on", "in the first and the third step"
_HELD_BACK = "Not judged until the first step is correct: see that check."


def _started(seed: int, make: MakeMuon, *shapes: tuple[int, ...]) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    """Return a matrix of each shape with gradients of ones, which have a direction of their own, and the optimizer."""
    ps = drawn_parameters(seed, *shapes)
    for p in ps:
        p.grad = torch.ones_like(p) + p.detach().abs()
    return ps, make(ps, RATE)


def _first(seed: int, make: MakeMuon) -> Evidence:
    """Return how far each of three matrices goes in the first step."""
    seen: Evidence = {}
    for name, shape in SHAPES.items():
        ps = drawn_parameters(seed, shape)
        seen[name] = way(make(ps, RATE), ps, seed + 1, ({},))[0]
    return seen


def _ways(seed: int, make: MakeMuon) -> Evidence:
    """Take first steps and later ones; note how far the matrices went."""
    seen: Evidence = {"first": _first(seed, make)}
    for case, changes in ((SIX, ({},) * 6), (SCHEDULE, FALLING)):
        ps = drawn_parameters(seed, (12, 16))
        seen[case] = way(make(ps, RATE), ps, seed + 1, changes)[0]
    ps = drawn_parameters(seed, (12, 16), (12, 16))
    groups = [{"params": ps[:1]}, {"params": ps[1:], "lr": 0.005}]
    seen[GROUPS] = way(make(groups, RATE), ps, seed, ({},))[1]
    return seen


def _waited(seed: int, make: MakeMuon) -> Evidence:
    """Take three steps of three matrices: one has a gradient in each, the others not."""
    ps = always, late, paused = drawn_parameters(seed, *[(12, 16)] * 3)
    optimizer, start = make(ps, RATE), [p.detach().clone() for p in ps]
    generator, moved = torch.Generator().manual_seed(seed), False
    for given in ((always, paused), (always,), (always, late, paused)):
        gradient = torch.randn(12, 16, generator=generator).to(always.device)
        waits = [p for p in ps if not any(p is each for each in given)]
        for p in ps:
            p.grad = None if any(p is each for each in waits) else gradient.clone()
        before = [p.detach().clone() for p in waits]
        optimizer.step()
        moved |= any(not torch.equal(p.detach(), was) for p, was in zip(waits, before, strict=True))
    went = {when: (ps[i].detach() - start[i]).cpu().double().flatten().tolist() for i, when in ((1, LATE), (2, PAUSED))}
    return {"moved": moved, "went": went}


def _first_is_wrong(seen: Evidence, expected: Evidence) -> str | None:
    """Name a matrix whose first step is wrong, and say how."""
    for name in SHAPES:
        mine, right = seen["first"][name], expected["first"][name]
        off = relative_distance(mine, right)
        if not any(mine):
            return (
                f"{name}: after a step no weight has moved. Does `step()` write the update into the parameter itself?"
            )
        if not off <= SAME:
            factor = sum(a * b for a, b in zip(mine, right, strict=False)) / sum(b * b for b in right)
            if factor and relative_distance(mine, [factor * b for b in right]) <= SAME:
                return f"{name}: the step has the right direction; it should be multiplied by {1 / factor:.3g}."
            return (
                f"{name}: after one step the weights are off by {off:.2g} times their correct change. What goes into "
                "`orthogonalize`, and how many iterations does it take?"
            )
    return None


class FirstStepIsMuons(Check):
    """The first step is that of the formulas, for square, wide and tall matrices."""

    hint = (
        "In the first step M is 0.05 G. Which matrix goes into `orthogonalize`?\n"
        "The step is lr times 0.2 times the root of the larger side, times the orthogonalized N, and is subtracted."
    )

    @staticmethod
    def probe(seed: int, make: MakeMuon) -> Evidence:
        return {"first": _first(seed, make)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _first_is_wrong(seen, expected)


class FollowsTheMomentum(Check):
    """Later steps use the momentum of all gradients so far, and the learning rate of the matrix's group."""

    hint = (
        "What does M hold when the second step begins? Not zeros.\n"
        "N uses the M of this step: 0.95 times the new M, and 0.05 times G.\n"
        '`group["lr"]` is read in each step, for the matrices of that group.'
    )

    probe = staticmethod(_ways)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if _first_is_wrong(seen, expected):
            return _HELD_BACK
        for case in (SIX, SCHEDULE, GROUPS):
            off = relative_distance(seen[case], expected[case])
            if not off <= SAME:
                far = f"the weights are off by {off:.2g} times their correct change"
                if case == SIX:
                    return f"After six steps {far}. Does each begin with the M of the last one? Does N use the new M?"
                return f"With {case}, {far}. Where does a step take the learning rate from?"
        return None


class KeepsOneNumber(Check):
    """Between steps, only the momentum remains: four bytes per weight, in `self.state`."""

    hint = (
        "What is alive after the step? Every variable that still refers to a tensor keeps it alive.\n"
        "Store the momentum in `self.state[p]`, and nothing else: what is stored there is saved with the optimizer."
    )

    @staticmethod
    def probe(seed: int, make: MakeMuon) -> Evidence:
        seen: Evidence = {}
        for name in ("stays", "elsewhere"):
            ps, optimizer = _started(seed, make, (64, 64), (48, 96), (80, 40))
            with MemoryMeter(device=ps[0].device) as meter:
                optimizer.step()
                if name == "elsewhere":
                    optimizer.state.clear()
                gc.collect()
            alive = sum(block.nbytes for block in meter.lifetimes if block.end is None)
            seen[name] = (alive - sum(2 * p.nbytes for p in ps)) / sum(p.numel() for p in ps)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        stays, want = seen["stays"], expected["stays"]
        if not stays <= 1.02 * want:
            return f"After the step, {stays:.2f} bytes per weight remain allocated; expected {want:.2f}."
        if not stays >= 0.98 * want:
            return (
                f"After the step, only {stays:.2f} bytes per weight remain allocated. Where is the momentum, in FP32?"
            )
        if not seen["elsewhere"] <= 0.25 * want:
            return (
                f"Of {stays:.2f} bytes per weight, {seen['elsewhere']:.2f} are outside of `self.state`: they "
                "remain after its entries were deleted. Only what is in `self.state[p]` is saved with the optimizer."
            )
        return None


class OneMatrixAtATime(Check):
    """The step orthogonalizes only one matrix at a time."""

    hint = (
        "How many matrices have their N, or their orthogonalized step, alive at once?\n"
        "Orthogonalize and subtract inside one loop over the matrices."
    )
    COUNT, ROOM = 24, 12  # matrices of one size; copies of one of them that a step may hold

    @staticmethod
    def probe(seed: int, make: MakeMuon) -> Evidence:
        ps, optimizer = _started(seed, make, *[(64, 64)] * OneMatrixAtATime.COUNT)
        optimizer.step()
        with MemoryMeter(nn.ParameterList(ps), optimizer) as meter:
            optimizer.step()
        return {"copies": (meter.peak_bytes - sum(3 * p.nbytes for p in ps)) / ps[0].nbytes}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["copies"] <= OneMatrixAtATime.ROOM:
            return (
                f"A step on {OneMatrixAtATime.COUNT} matrices of one size holds {seen['copies']:.0f} copies of one of "
                f"them at its peak; {OneMatrixAtATime.ROOM} are allowed. Which tensors stay alive from one matrix to "
                "the next?"
            )
        return None


class WaitsForAGradient(Check):
    """A matrix without a gradient does not change, nor does its momentum."""

    hint = (
        "Does every matrix have a gradient in every step?\n"
        "If `p.grad is None`, skip the matrix in this step, momentum included."
    )

    @staticmethod
    def probe(seed: int, make: MakeMuon) -> Evidence:
        return _ways(seed, make) | _waited(seed, make)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["moved"]:
            return "A matrix changed in a step in which it had no gradient."
        if _first_is_wrong(seen, expected):
            return _HELD_BACK
        for when, right in expected["went"].items():
            off = relative_distance(seen["went"][when], right)
            if not off <= SAME:
                if FollowsTheMomentum.judge(seen, expected):
                    return "Not judged until steps with a gradient are correct: see `follows_the_momentum`."
                return (
                    f"With a gradient {when}, the weights are off by {off:.2g} times their correct change. Does a step "
                    "without a gradient change the momentum?"
                )
        return None


class LeavesGradientsAlone(Check):
    """A step does not change the gradients."""

    hint = (
        "Which in-place operation changes a gradient? `p.grad.lerp_` does; `p.grad.lerp` makes a new tensor.\n"
        "The gradient has other uses: its norm may be logged, and the next micro-batch adds to it."
    )

    @staticmethod
    def probe(seed: int, make: MakeMuon) -> Evidence:
        ps, optimizer = _started(seed, make, *SHAPES.values())
        given = [p.grad.clone() for p in ps]
        optimizer.step()
        return {"changed": [_changed(p.grad, was) for p, was in zip(ps, given, strict=True)]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not any(seen["changed"]):
            return None
        return "After a step a gradient has changed or is None. Which line writes to it?"


def _changed(gradient: Any, was: Tensor) -> bool:
    return not isinstance(gradient, Tensor) or not torch.equal(gradient, was)


MUON = (
    FirstStepIsMuons,
    FollowsTheMomentum,
    KeepsOneNumber,
    OneMatrixAtATime,
    WaitsForAGradient,
    LeavesGradientsAlone,
)
