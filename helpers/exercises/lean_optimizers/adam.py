"""Check of Adam with moments in 8 bits: its way, its bytes between steps, and what a step holds."""

import gc

import torch
from torch import nn

from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from .ways import (
    BLOCKS,
    CASES,
    FALLING,
    GROUPS,
    LARGE,
    SETTINGS,
    SIX,
    SMALL,
    MakeAdam,
    adams_way,
    books_of,
    drawn_parameters,
    first_step,
    later_steps,
    way,
)

EXACT = 1e-5  # relative, of the way: other orders of the same operations differ by less
ROUNDED = 0.004  # where a number lies between two codes, the last bit decides which is taken
SIZES = {"100 numbers": (10, 10), "6,144 numbers": LARGE}  # on either side of 4,096
FEW = {"2,400 numbers": SMALL, "4,095 numbers": (4095,)}
LATE, PAUSED = "from the third step on", "in the first and the third step"
_HELD_BACK = "Not judged until the first step is correct: see that check."
_NOT_YET = "Not judged until steps in which every parameter has a gradient are correct: see `follows_adam`."
_SMALL_FIRST = "Not judged until small tensors are updated as by Adam: see `small_ones_stay_whole`."


def _kept(seed: int, make: MakeAdam, *shapes: tuple[int, ...]) -> Evidence:
    """Return the bytes per number that stay after a step, and those that stay when `optimizer.state` is emptied."""
    seen: Evidence = {}
    for name in ("stays", "elsewhere"):
        ps, books = drawn_parameters(seed, *shapes), books_of(seed)
        optimizer = make(ps, books, **SETTINGS)
        for p in ps:
            p.grad = torch.ones_like(p)
        with MemoryMeter(device=ps[0].device) as meter:
            for book in books:
                book.add_(0)  # the meter counts what was touched
            optimizer.step()
            if name == "elsewhere":
                optimizer.state.clear()
            gc.collect()
        alive = sum(block.nbytes for block in meter.lifetimes if block.end is None)
        there = sum(p.nbytes + p.grad.nbytes for p in ps) + sum(book.nbytes for book in books)
        seen[name] = (alive - there) / sum(p.numel() for p in ps)
    return seen


def _wrongly_kept(seen: Evidence, expected: Evidence) -> str | None:
    """Say what is wrong with the bytes that stay, and with where they are."""
    stays, want = seen["stays"], expected["stays"]
    if not stays <= 1.02 * want:
        return f"After the step, {stays:.3f} bytes per parameter remain allocated; expected {want:.3f}."
    if not stays >= 0.98 * want:
        return f"After the step, only {stays:.3f} bytes per parameter remain allocated. Where are the moments?"
    if not seen["elsewhere"] <= 0.25 * want:
        return (
            f"Of {stays:.3f} bytes per parameter, {seen['elsewhere']:.3f} are outside of `self.state`: they "
            "remain after its entries were deleted. Only what is in `self.state[p]` is saved with the optimizer."
        )
    return None


class FirstStepIsAdams(Check):
    """The first step is Adam's own: rounding comes after the update, when the moments are stored."""

    hint = (
        "Which moments move the weights: those just computed, or what is left of them once they are stored?\n"
        "m / (1 - beta1**t) over the root of v / (1 - beta2**t), plus eps. In the first step t is 1."
    )

    probe = staticmethod(first_step)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["moved"]:
            return "After a step no weight has moved. Does `step()` write the update into the parameter itself?"
        if not seen["off"] <= EXACT:
            far = f"After one step the weights are off by {seen['off']:.2g} times their correct change."
            if seen["under the root"] <= EXACT:
                return f"{far} That results from an eps under the root: add eps to the root."
            return (
                f"{far} Do m and v go into the update before they are encoded, with both bias corrections, and is eps "
                "added to the root?"
            )
        return None


class FollowsAdam(Check):
    """Later steps follow Adam with the settings of the parameter's group, except for the rounding between steps."""

    hint = (
        "What should a step begin with? Not with zeros, but with what the last one stored.\n"
        "Each moment has its own beta and its own book: the first is signed, the second is not.\n"
        '`group["lr"]`, `group["betas"]` and `group["eps"]` are read in each step; t is counted.'
    )

    probe = staticmethod(later_steps)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["first"] <= EXACT:
            return _HELD_BACK
        for case in (*CASES, GROUPS):
            want = expected[case]
            off = relative_distance(seen[case], want)
            if not off <= ROUNDED:
                far = f"the weights are off by {off:.2g} times their correct change; rounding explains only {ROUNDED}"
                if case == SIX:
                    for block, taken in expected[BLOCKS].items():
                        if relative_distance(seen[case], taken) <= ROUNDED:
                            return f"After six steps {far}. That results from blocks of {block}."
                    return f"After six steps {far}. Does each begin with what the last one stored? With the right book?"
                return f"With {case}, {far}. What does a step read from the parameter's group?"
        return None


class KeepsTwoBytes(Check):
    """Between steps a tensor of 4,096 numbers or more costs two bytes per number, and two scales per 256 numbers."""

    hint = (
        "What is alive after the step? Every variable that still refers to FP32 moments keeps them alive.\n"
        "Store codes and scales in `self.state[p]`, and nothing else for a large tensor."
    )

    @staticmethod
    def probe(seed: int, make: MakeAdam) -> Evidence:
        return _kept(seed, make, (128, 128), (4096,), (96, 50))

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrongly_kept(seen, expected)


class OneParameterAtATime(Check):
    """While the step runs, only one parameter's moments are decoded at a time."""

    hint = (
        "How many parameters have their FP32 moments alive at once?\n"
        "Decode, update and encode inside one loop over parameters, and release the last one's tensors."
    )
    COUNT, ROOM = 24, 14  # tensors of one size; copies of one of them, in FP32, that a step may hold

    @staticmethod
    def probe(seed: int, make: MakeAdam) -> Evidence:
        ps = drawn_parameters(seed, *[(64, 128)] * OneParameterAtATime.COUNT)
        optimizer = make(ps, books_of(seed), **SETTINGS)
        for p in ps:
            p.grad = torch.ones_like(p)
        optimizer.step()
        with MemoryMeter(nn.ParameterList(ps), optimizer) as meter:
            optimizer.step()
        state = 2 * (1 + 4 / 256) * sum(p.numel() for p in ps)
        there = state + sum(p.nbytes + p.grad.nbytes for p in ps)
        return {"copies": (meter.peak_bytes - there) / ps[0].nbytes}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["copies"] <= OneParameterAtATime.ROOM:
            return (
                f"A step on {OneParameterAtATime.COUNT} tensors of one size holds {seen['copies']:.0f} FP32 copies of "
                f"one of them at its peak; {OneParameterAtATime.ROOM} are allowed. Which tensors stay "
                "alive from one parameter to the next?"
            )
        return None


def _small(seed: int, make: MakeAdam) -> Evidence:
    """Return how far six steps of small tensors are off."""
    seen: Evidence = {}
    for case, shape in FEW.items():
        ps = drawn_parameters(seed + 2, shape)
        mine = way(make(ps, books_of(seed), **SETTINGS), ps, seed + 2, FALLING)[0]
        seen[case] = relative_distance(mine, adams_way(seed + 2, shape, FALLING))
    return seen


def _small_are_wrong(seen: Evidence) -> str | None:
    for case in FEW:
        if not seen[case] <= EXACT:
            return (
                f"{case}: after six steps the weights are off by {seen[case]:.2g} of the distance "
                "that torch.optim.Adam moves them. Are their moments kept in FP32, and not encoded?"
            )
    return None


class SmallOnesStayWhole(Check):
    """A tensor of fewer than 4,096 numbers keeps its moments in FP32 and is updated as by Adam."""

    hint = (
        "Which branch does a tensor of 4,095 numbers take, and which does one of 4,096 take?\n"
        "If `p.numel() < 4096`, keep m and v in the state as they are."
    )

    @staticmethod
    def probe(seed: int, make: MakeAdam) -> Evidence:
        return later_steps(seed, make) | _small(seed, make) | {"kept": _kept(seed, make, (60, 60), (4095,))}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["first"] <= EXACT:
            return _HELD_BACK
        if far := _small_are_wrong(seen):
            return _NOT_YET if FollowsAdam.judge(seen, expected) else far
        wrong = _wrongly_kept(seen["kept"], expected["kept"])
        return f"Tensors of fewer than 4,096 numbers: {wrong}" if wrong else None


class WaitsForAGradient(Check):
    """A parameter without a gradient does not change, nor do its moments, and the step does not count for it."""

    hint = (
        "Does every parameter have a gradient in every step?\n"
        "If `p.grad is None`, skip the parameter in this step. The bias correction needs a count per parameter."
    )

    @staticmethod
    def probe(seed: int, make: MakeAdam) -> Evidence:
        seen: Evidence = later_steps(seed, make) | _small(seed, make)
        for size, shape in SIZES.items():
            seen[size] = _waited(seed, make, shape)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        sizes = list(SIZES)
        for size in sizes:
            if seen[size]["moved"]:
                return f"{size}: a parameter changed in a step in which it had no gradient."
        if not seen["first"] <= EXACT:
            return _HELD_BACK
        for size in sizes:
            room = {LATE: EXACT, PAUSED: ROUNDED if SIZES[size] == LARGE else EXACT}
            for when, way_there in expected[size]["went"].items():
                off = relative_distance(seen[size]["went"][when], way_there)
                if not off <= room[when]:
                    if FollowsAdam.judge(seen, expected):
                        return _NOT_YET
                    if SIZES[size] != LARGE and _small_are_wrong(seen):
                        return _SMALL_FIRST
                    return (
                        f"{size}, with a gradient {when}: the weights are off by {off:.2g} times their correct change. "
                        "Does a step without a gradient count for the parameter, or change its moments?"
                    )
        return None


def _waited(seed: int, make: MakeAdam, shape: tuple[int, ...]) -> Evidence:
    """Take three steps of three parameters: one has a gradient in each, the others not."""
    always, late, paused = ps = drawn_parameters(seed, shape, shape, shape)
    optimizer, start = make(ps, books_of(seed), **SETTINGS), [p.detach().clone() for p in ps]
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(3, *shape, generator=generator).to(always.device)
    moved = False
    for number, gradient in enumerate(gradients):
        with_gradient = {0: (always, paused), 1: (always,), 2: (always, late, paused)}[number]
        before = [p.detach().clone() for p in ps]
        for p in ps:
            p.grad = gradient.clone() if any(p is each for each in with_gradient) else None
        optimizer.step()
        for p, was in zip(ps, before, strict=True):
            moved |= not any(p is each for each in with_gradient) and not torch.equal(p.detach(), was)
    pairs = ((LATE, late, start[1]), (PAUSED, paused, start[2]))
    went = {when: (p.detach() - was).cpu().double().flatten().tolist() for when, p, was in pairs}
    return {"moved": moved, "went": went}


class LeavesGradientsAlone(Check):
    """A step does not change the gradients."""

    hint = (
        "Did an in-place operation (`mul_`, `square_`) change a gradient, or did `p.grad = None` drop it? It has "
        "other uses, too: a log "
        "of its norm, or the next micro-batch, which adds to it.\n"
        "`p.grad.square()` makes a new tensor."
    )
    probe = staticmethod(first_step)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        changed = [size for size in ("large", "small") if size in seen["changed"]]
        if not changed:
            return None
        return f"After a step the gradient of a {changed[0]} tensor has changed or is None. Which line writes to it?"


ADAM = (
    FirstStepIsAdams,
    FollowsAdam,
    KeepsTwoBytes,
    OneParameterAtATime,
    SmallOnesStayWhole,
    WaitsForAGradient,
    LeavesGradientsAlone,
)
