"""Check of a step of SGD with master weights."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..base import Check, Evidence
from ..probing.distance import relative_distance

SHAPES = ((20, 25), (3, 4, 5), (1,))
STEPS = 300


class MasterKeepsSmallUpdates(Check):
    """Updates too small for a BF16 weight add up in the FP32 master, and the weight follows."""

    hint = (
        "Which of the two tensors can hold a small update? Add it there.\n"
        "The gradient is BF16: convert it to FP32 before it is multiplied by `lr`.\n"
        "Which operations write into the tensor you were given instead of making a new one? Their names end in an "
        "underscore."
    )

    @staticmethod
    def probe(seed: int, sgd_with_master: Callable[..., None]) -> Evidence:
        seen: Evidence = {"dtype": [], "same memory": [], "nearest": [], "gradient kept": True}

        def step(weight: Tensor, master: Tensor, gradient: Tensor, lr: float, times: int = 1) -> None:
            held = {"weight": weight, "master": master}
            at, before = [t.data_ptr() for t in held.values()], gradient.clone()
            for _ in range(times):
                sgd_with_master(weight, master, gradient, lr)
            moved = [name for (name, t), pointer in zip(held.items(), at, strict=True) if t.data_ptr() != pointer]
            seen["same memory"] += moved
            seen["gradient kept"] &= torch.equal(before, gradient)
            seen["dtype"].append(str(weight.dtype).removeprefix("torch."))
            seen["nearest"].append(torch.equal(weight, master.bfloat16()))

        master = torch.rand(20, 25) + 0.5
        weight, start, gradient = master.bfloat16(), master.clone(), torch.randn(20, 25).bfloat16()
        step(weight, master, gradient, 1e-5, STEPS)
        moves = {"master": master - start, "weight": weight.float() - start.bfloat16().float()}
        seen |= {"moves": {name: move.flatten().tolist() for name, move in moves.items()}, "once": []}
        for shape in SHAPES:
            once = torch.zeros(shape)
            step(torch.ones(shape).bfloat16(), once, torch.randn(shape).bfloat16(), 0.1)
            seen["once"].append(once.flatten().tolist())
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["dtype"] != expected["dtype"] or seen["same memory"]:
            name = seen["same memory"][0] if seen["same memory"] else "weight"
            return (
                f"`{name}` is now a different tensor, or has another dtype: write into the tensor that you were given, "
                "in place."
            )
        if not seen["gradient kept"]:
            return "Your function changed `gradient`. `gradient.float()` makes a copy to compute with."
        for name, move in seen["moves"].items():
            if not any(move):
                return (
                    f"After {STEPS} steps `{name}` has not changed. Was every update rounded away, or was nothing "
                    f"written into it? (`{name} = ...` only rebinds the name.)"
                )
        moved, wanted = seen["moves"]["master"], expected["moves"]["master"]
        if relative_distance(moved, [-number for number in wanted]) <= 0.01:
            return "The master moves along the gradient, uphill; it should move against it."
        for mine, right in zip(seen["once"], expected["once"], strict=True):
            if not (off := relative_distance(mine, right)) <= 1e-6:
                return (
                    f"After a single step of lr 0.1 the master's move has a relative error of {off:.1g}. Rounding to "
                    "BF16 explains 2e-3: convert the gradient to FP32 first."
                )
        if not (off := relative_distance(moved, wanted)) <= 0.01:
            return (
                f"After {STEPS} steps of lr 1e-5 the master's move has a relative error of {off:.2g}. Does each step "
                "start from the FP32 master, and not from the rounded weight?"
            )
        if not all(seen["nearest"]):
            return (
                "The weight has changed, but it is not the BF16 number nearest to the new master. Copy the master "
                "into it last."
            )
        return None


MASTER = (MasterKeepsSmallUpdates,)
