"""Check of Adam with moments in 8 bits: its way, its bytes between steps, and what a step holds."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ...core.device import pick_device
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance
from .books import drawn_book

MakeAdam = Callable[..., torch.optim.Optimizer]
EXACT = 1e-5  # relative, of the way: other orders of the same operations differ by less
ROUNDED = 0.004  # where a number lies between two codes, the last bit decides which is taken
SETTINGS = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3}  # not the usual ones, so that none can be left out
LARGE, SMALL = (96, 64), (40, 60)  # 6,144 and 2,400 numbers, on either side of 4,096
Settings = dict[str, Any]  # of a parameter group
SIX = "six steps"
FALLING = tuple({"lr": rate} for rate in (0.02, 0.016, 0.012, 0.008, 0.004, 0.002))
CASES: dict[str, tuple[Settings, ...]] = {
    SIX: ({},) * 6,
    "a falling learning rate": FALLING,
    "other betas from the fourth step on": ({},) * 3 + ({"betas": (0.5, 0.7)},) * 3,
    "another eps from the fourth step on": ({},) * 3 + ({"eps": 2.0},) * 3,
}


def _books(seed: int) -> tuple[Tensor, Tensor]:
    """Return the code books of the first and of the second moment; both are as long, so that a code fits either."""
    first, second = drawn_book(seed, True), drawn_book(seed + 1, False)
    return first, torch.cat([second[:1], second[2:]])


def _parameters(seed: int, *shapes: tuple[int, ...]) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(pick_device())) for shape in shapes]


def _way(
    optimizer: torch.optim.Optimizer, ps: list[nn.Parameter], seed: int, changes: Iterable[Settings]
) -> list[list[float]]:
    """Take a step after each of `changes` on gradients drawn from `seed`; return how far each parameter went."""
    generator, start = torch.Generator().manual_seed(seed), [p.detach().clone() for p in ps]
    for changed in changes:
        for group in optimizer.param_groups:
            group.update(changed)
        for p in ps:
            p.grad = torch.randn(p.shape, generator=generator).to(p.device) * (1 + p.detach().abs())
        optimizer.step()
    return [(p.detach() - s).cpu().double().flatten().tolist() for p, s in zip(ps, start, strict=True)]


def _adams_way(seed: int, shape: tuple[int, ...], changes: Iterable[Settings]) -> list[float]:
    ps = _parameters(seed, shape)
    return _way(torch.optim.Adam(ps, **SETTINGS), ps, seed, changes)[0]


_HELD_BACK = "Held back until the first step is Adam's own: see that verdict."


def _first_step_off(seed: int, make: MakeAdam) -> float:
    ps = _parameters(seed, LARGE)
    mine = _way(make(ps, _books(seed), **SETTINGS), ps, seed, ({},))[0]
    return relative_distance(mine, _adams_way(seed, LARGE, ({},)))


class FirstStepIsAdams(Check):
    """The first step is Adam's own: rounding comes after the update, when the moments are stored."""

    hint = (
        "Which moments move the weights: those just computed, or what is left of them once they are stored?\n"
        "m / (1 - beta1**t) over the root of v / (1 - beta2**t), plus eps. In the first step t is 1."
    )

    @staticmethod
    def probe(seed: int, make: MakeAdam) -> Evidence:
        ps = _parameters(seed, LARGE)
        mine = _way(make(ps, _books(seed), **SETTINGS), ps, seed, ({},))[0]
        return {"off": relative_distance(mine, _adams_way(seed, LARGE, ({},))), "moved": any(mine)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["moved"]:
            return "After a step no weight has moved."
        if not seen["off"] <= EXACT:
            return f"After one step the weights are off by {seen['off']:.2g} of the way that torch.optim.Adam goes."
        return None


class FollowsAdam(Check):
    """It goes on as Adam does, by the settings of the parameter's group, but for the rounding between steps."""

    hint = (
        "What should a step begin with? Not with zeros, but with what the last one stored.\n"
        "Each moment has its own beta and its own book: the first is signed, the second is not.\n"
        '`group["lr"]`, `group["betas"]` and `group["eps"]` are read in each step; t is counted.'
    )

    @staticmethod
    def probe(seed: int, make: MakeAdam) -> Evidence:
        seen: Evidence = {"first": _first_step_off(seed, make)}
        for case, changes in CASES.items():
            ps = _parameters(seed, LARGE)
            seen[case] = _way(make(ps, _books(seed), **SETTINGS), ps, seed + 1, changes)[0]
        ps = _parameters(seed, LARGE, LARGE)
        groups = [{"params": ps[:1]}, {"params": ps[1:], "lr": 0.005}]
        seen["a second group, with a rate of its own"] = _way(make(groups, _books(seed), **SETTINGS), ps, seed, ({},))[
            1
        ]
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["first"] <= EXACT:
            return _HELD_BACK
        for case, want in expected.items():
            if case == "first":
                continue
            off = relative_distance(seen[case], want)
            if not off <= ROUNDED:
                far = f"the weights are off by {off:.2g} of the way they should go; rounding explains {ROUNDED}"
                if case == SIX:
                    return f"After six steps {far}. Does each begin with what the last one stored? Which book is whose?"
                return f"With {case}, {far}. What does a step read from the parameter's group?"
        return None


class KeepsTwoBytes(Check):
    """Between steps a tensor of 4,096 numbers or more costs two bytes a number, and two scales for 256 of them."""

    hint = (
        "What is alive when the step is over? Every name that still points to FP32 moments keeps them.\n"
        "Store codes and scales in `self.state[p]`, and nothing else of a large tensor."
    )

    @staticmethod
    def probe(seed: int, make: MakeAdam) -> Evidence:
        ps = _parameters(seed, (256, 256), (4096,), (96, 50))
        optimizer = make(ps, _books(seed), **SETTINGS)
        for p in ps:
            p.grad = torch.ones_like(p)
        with MemoryMeter(device=ps[0].device) as meter:
            optimizer.step()
        alive = sum(block.nbytes for block in meter.lifetimes if block.end is None)
        return {"stays": (alive - sum(p.nbytes + p.grad.nbytes for p in ps)) / sum(p.numel() for p in ps)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["stays"] <= 1.02 * expected["stays"]:
            return f"After the step {seen['stays']:.3f} bytes a parameter stay; {expected['stays']:.3f} are enough."
        if not seen["stays"] >= 0.98 * expected["stays"]:
            return f"After the step only {seen['stays']:.3f} bytes a parameter stay. Where are the moments?"
        return None


class OneParameterAtATime(Check):
    """While the step runs, the moments of one parameter are unpacked at a time."""

    hint = (
        "How many parameters have their FP32 moments alive at once?\n"
        "Decode, update and encode inside one loop over parameters, and let go of what belongs to the last one."
    )
    COUNT, ROOM = 24, 14  # tensors of one size; copies of one of them, in FP32, that a step may hold

    @staticmethod
    def probe(seed: int, make: MakeAdam) -> Evidence:
        ps = _parameters(seed, *[(64, 128)] * OneParameterAtATime.COUNT)
        optimizer = make(ps, _books(seed), **SETTINGS)
        for p in ps:
            p.grad = torch.ones_like(p)
        optimizer.step()
        with MemoryMeter(device=ps[0].device) as meter:
            optimizer.step()
        state = 2 * (1 + 4 / 256) * sum(p.numel() for p in ps)
        there = state + sum(p.nbytes + p.grad.nbytes for p in ps)
        return {"copies": (meter.peak_bytes - there) / ps[0].nbytes}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["copies"] <= OneParameterAtATime.ROOM:
            return (
                f"A step on {OneParameterAtATime.COUNT} tensors of one size holds {seen['copies']:.0f} FP32 copies of "
                f"one of them at its peak; {OneParameterAtATime.ROOM} are allowed. Who is kept from one to the next?"
            )
        return None


class SmallOnesStayWhole(Check):
    """A tensor of fewer than 4,096 numbers keeps its moments in FP32 and goes Adam's way."""

    hint = (
        "Where does a tensor of 4,095 numbers go, and where one of 4,096?\n"
        "If `p.numel() < 4096`, keep m and v in the state as they are."
    )

    @staticmethod
    def probe(seed: int, make: MakeAdam) -> Evidence:
        seen: Evidence = {"first": _first_step_off(seed, make)}
        for case, shape in (("2,400 numbers", SMALL), ("4,095 numbers", (4095,))):
            ps = _parameters(seed + 2, shape)
            mine = _way(make(ps, _books(seed), **SETTINGS), ps, seed + 2, FALLING)[0]
            seen[case] = relative_distance(mine, _adams_way(seed + 2, shape, FALLING))
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["first"] <= EXACT:
            return _HELD_BACK
        for case in expected:
            if not seen[case] <= EXACT:
                return (
                    f"{case}: after six steps the weights are off by {seen[case]:.2g} of the way torch.optim.Adam goes."
                )
        return None


class WaitsForAGradient(Check):
    """A parameter without a gradient stays where it is, and its steps are counted from its first gradient on."""

    hint = (
        "Is there always a gradient to read?\n"
        "`p.grad is None` means: not this one, not now. The bias correction needs a count for each parameter."
    )

    @staticmethod
    def probe(seed: int, make: MakeAdam) -> Evidence:
        ps = _parameters(seed, (10, 10), (10, 10))
        optimizer, start = make(ps, _books(seed), **SETTINGS), ps[1].detach().clone()
        gradients = torch.randn(4, 10, 10, generator=torch.Generator().manual_seed(seed)).to(start.device)
        for gradient in gradients[:2]:
            ps[0].grad = gradient
            optimizer.step()
        early = not torch.equal(ps[1].detach(), start)
        for p, gradient in zip(ps, gradients[2:], strict=True):
            p.grad = gradient
        optimizer.step()
        adam = nn.Parameter(start.clone())
        adam.grad = gradients[3]
        torch.optim.Adam([adam], **SETTINGS).step()
        went, should = ((p.detach() - start).flatten().tolist() for p in (ps[1], adam))
        return {"first": _first_step_off(seed, make), "early": early, "late": relative_distance(went, should)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["early"]:
            return "A parameter without a gradient has moved."
        if not seen["first"] <= EXACT:
            return _HELD_BACK
        if not seen["late"] <= EXACT:
            return (
                f"A parameter whose first gradient comes in the third step is off by {seen['late']:.2g} of Adam's way. "
                "Whose steps are counted?"
            )
        return None


ADAM = (
    FirstStepIsAdams,
    FollowsAdam,
    KeepsTwoBytes,
    OneParameterAtATime,
    SmallOnesStayWhole,
    WaitsForAGradient,
)
