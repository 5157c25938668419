"""Check of a function that runs the same each time: random numbers and autocast as in its first call."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..base import Check, Evidence

Run = Callable[[Tensor], Tensor]
Repeatable = Callable[[Run], Run]
_HELD_BACK = "Not judged until a later call draws the first call's random numbers: see that check."


def _drop(x: Tensor) -> Tensor:
    """Drop half of x, and add noise."""
    return F.dropout(x, 0.5) + torch.randn_like(x)


def _numbers(tensor: Any) -> list[float]:
    return [round(number, 6) for number in tensor.flatten().tolist()]


class DrawsTheSameNumbers(Check):
    """Each later call draws the random numbers of the first."""

    hint = (
        "Which state does dropout read, and why is it different the second time?\n"
        "random_states() before the first call; set_random_states(...) before each later one."
    )

    @staticmethod
    def probe(seed: int, repeatable: Repeatable) -> Evidence:
        torch.manual_seed(seed)
        x = torch.randn(5, 7)
        again = repeatable(_drop)
        first = again(x)
        later = []
        for n in (3, 11):
            torch.randn(n)  # what the rest of the network draws
            later.append(again(x))
        return {"later": [torch.equal(first, one) for one in later]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if all(seen["later"]):
            return None
        which = "second" if not seen["later"][0] else "third"
        return (
            f"A function with dropout and noise: the {which} call draws different random numbers from the first. Set "
            "the states from before the first call."
        )


class NotesWhatTheFirstCallSees(Check):
    """The first call behaves like run(x). State is read during that call, not when `repeatable(run)` is called."""

    hint = "When do you read the state: when repeatable(run) makes the function, or when that function is first called?"

    @staticmethod
    def probe(seed: int, repeatable: Repeatable) -> Evidence:
        torch.manual_seed(seed + 1)
        x = torch.randn(5, 7)
        again = repeatable(_drop)
        torch.randn(9)  # between the making and the first call
        state = torch.get_rng_state()
        first, second = again(x), again(x)
        torch.set_rng_state(state)
        alone = _drop(x)
        return {"first": torch.equal(first, alone), "second": torch.equal(second, alone)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        between = "Numbers were drawn between repeatable(run) and the first call."
        if not seen["first"]:
            return (
                f"The first call draws different random numbers from those that run itself would have drawn. {between}"
            )
        if not seen["second"]:
            return f"The second call draws different random numbers from the first. {between}"
        return None


class RunsOnTheGivenX(Check):
    """Each later call runs `run` once, on the x that it is given, and autograd records it if it is on at that point."""

    hint = (
        "Remember the state around the first call, not its result: call run(x) each time.\n"
        "Inside Recompute, autograd is off in the first call and on in the second, whose graph is needed."
    )

    @staticmethod
    def probe(seed: int, repeatable: Repeatable) -> Evidence:
        torch.manual_seed(seed + 5)
        inputs = [torch.randn(5, 7).requires_grad_() for _ in range(3)]
        calls: list[int] = []

        def run(x: Tensor) -> Tensor:
            calls.append(len(x))
            return _drop(x)

        seen: Evidence = {"same": [], "recorded": {}}
        for first in (False, True):
            for later in (False, True):
                again, state = repeatable(run), torch.get_rng_state()
                with torch.set_grad_enabled(first):
                    again(inputs[0])
                with torch.set_grad_enabled(later):
                    results = [again(x) for x in inputs[1:]]
                    right = []
                    for x in inputs[1:]:
                        torch.set_rng_state(state)
                        right.append(_drop(x))
                seen["same"] += map(torch.equal, results, right)
                modes = f"{'on' if first else 'off'} in the first call, {'on' if later else 'off'} in a later one"
                seen["recorded"][f"autograd {modes}"] = [result.requires_grad for result in results]
        seen["calls"] = len(calls)
        mine, wanted = (
            [
                torch.autograd.grad(y.sum(), x, allow_unused=True)[0]
                for y, x in zip(made, inputs[1:], strict=True)
                if y.grad_fn
            ]
            for made in (results, right)
        )
        seen["gradients"] = [a is not None and torch.equal(a, b) for a, b in zip(mine, wanted, strict=False)]

        one = repeatable(_drop)
        first = one(inputs[0])
        seen["alone"] = torch.equal(one(inputs[0]), first) and torch.equal(one(inputs[0]), first)
        other, state = repeatable(_drop), torch.get_rng_state()
        second = other(inputs[0])
        later = [torch.equal(again(inputs[0]), y) for again, y in ((one, first), (other, second))]
        torch.set_rng_state(state)
        seen["apart"] = [*later, torch.equal(_drop(inputs[0]), second)]
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["alone"]:
            return _HELD_BACK
        if not all(seen["apart"]):
            return "Two functions made from the same run share state. Each needs its own."
        if not all(seen["same"]):
            return (
                "A later call with another x returns something other than run(x) with the first call's random numbers."
            )
        if seen["calls"] != expected["calls"]:
            return f"`run` is called {seen['calls']} times in {expected['calls']} calls; expected once per call."
        for case, wanted in expected["recorded"].items():
            if seen["recorded"][case] != wanted:
                does = "has no graph" if wanted[0] else "has a graph"
                return f"With {case}, the later result {does}. Use the setting that is active around the later call."
        if seen["gradients"] != expected["gradients"]:
            return "The gradient of a later call does not reach its x: hand x itself to run."
        return None


class LeavesTheGenerator(Check):
    """The first call advances the generator as `run` does; a later call leaves it as it was."""

    hint = "Read the state before a later call as well, and restore it when run has returned."

    @staticmethod
    def probe(seed: int, repeatable: Repeatable) -> Evidence:
        torch.manual_seed(seed + 2)
        x = torch.randn(5, 7)
        state = torch.get_rng_state()
        _drop(x)
        after_run = _numbers(torch.randn(3))
        torch.set_rng_state(state)
        again = repeatable(_drop)
        again(x)
        after_first = _numbers(torch.randn(3))
        state = torch.get_rng_state()
        due = _numbers(torch.randn(3))
        torch.set_rng_state(state)
        again(x)
        return {"first": [after_first, after_run], "later": [_numbers(torch.randn(3)), due]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        drawn, due = seen["first"]
        if drawn != due:
            return (
                "The numbers drawn after the first call are not those that would follow run itself. Leave the "
                "generators alone after that call."
            )
        drawn, due = seen["later"]
        if drawn != due:
            return (
                "The numbers drawn after a later call are not those that would have come without it. Restore the "
                "states from before that call."
            )
        return None


def _matmul(x: Tensor) -> Tensor:
    """Return a matmul, which autocast computes in 16 bits."""
    return x @ x.T


def _dtypes(repeatable: Repeatable, first: torch.dtype | None, later: torch.dtype | None) -> Evidence:
    """Call once under autocast to `first` and once under autocast to `later` (None: autocast is off)."""
    x = torch.randn(6, 6)
    again = repeatable(_matmul)
    seen = {}
    for call, dtype in (("first", first), ("later", later)):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            seen[call] = str(again(x).dtype).removeprefix("torch.")
            seen[f"after {call}"] = str(_matmul(x).dtype).removeprefix("torch.")
    return seen


def _wrong_dtype(seen: Evidence, expected: Evidence) -> str | None:
    for case, want in expected.items():
        for call, dtype in want.items():
            if seen[case][call] != dtype:
                what = "a matmul right after the call" if call.startswith("after") else f"the {call} call"
                return (
                    f"{case}: {what} is in {seen[case][call]}; expected {dtype}. Read autocast's settings in the first "
                    "call, and use them in a `with` block around each later one."
                )
    return None


class RunsUnderTheSameAutocast(Check):
    """A later call runs with autocast on if it was on in the first call, and off if it was off."""

    hint = 'torch.is_autocast_enabled("cpu") returns the setting; torch.autocast("cpu", enabled=...) changes it.'

    @staticmethod
    def probe(seed: int, repeatable: Repeatable) -> Evidence:
        torch.manual_seed(seed + 3)
        return {
            "first with autocast, later without": _dtypes(repeatable, torch.bfloat16, None),
            "first without autocast, later with it": _dtypes(repeatable, None, torch.bfloat16),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_dtype(seen, expected)


class RunsInTheSameFormat(Check):
    """A later call runs in the 16-bit format of the first one's autocast."""

    hint = 'torch.get_autocast_dtype("cpu") returns the format; it is the second argument of torch.autocast.'

    @staticmethod
    def probe(seed: int, repeatable: Repeatable) -> Evidence:
        torch.manual_seed(seed + 4)
        return {
            "first under FP16, later without autocast": _dtypes(repeatable, torch.float16, None),
            "first under FP16, later under BF16": _dtypes(repeatable, torch.float16, torch.bfloat16),
            "first under BF16, later under FP16": _dtypes(repeatable, torch.bfloat16, torch.float16),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _wrong_dtype(seen, expected)


REPEATABLE = (
    DrawsTheSameNumbers,
    NotesWhatTheFirstCallSees,
    RunsOnTheGivenX,
    LeavesTheGenerator,
    RunsUnderTheSameAutocast,
    RunsInTheSameFormat,
)
