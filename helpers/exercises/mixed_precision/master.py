"""Check of a step of SGD with master weights."""

from collections.abc import Callable

import torch

from ..base import Check, Evidence


class MasterKeepsSmallUpdates(Check):
    """Updates too small for a BF16 weight add up in the FP32 master, and the weight follows."""

    hint = (
        "Which of the two tensors can hold a small update? Add it there.\n"
        "The gradient is BF16: turn it into FP32 before it is multiplied by `lr`.\n"
        "`master -= ...` writes in place, `weight.copy_(master)` rounds and writes in place."
    )

    @staticmethod
    def probe(seed: int, sgd_with_master: Callable[..., None]) -> Evidence:
        master = torch.rand(20, 25) + 0.5
        weight = master.bfloat16()
        at = weight.data_ptr()
        start = master.clone()
        gradient = torch.randn(20, 25).bfloat16()
        before = gradient.clone()
        for _ in range(300):
            sgd_with_master(weight, master, gradient, 1e-5)
        once = torch.zeros(20, 25)
        sgd_with_master(torch.zeros(20, 25).bfloat16(), once, gradient, 0.1)
        return {
            "gradient": gradient.float().tolist(),
            "once": once.tolist(),
            "nearest": torch.equal(weight, master.bfloat16()),
            "weight_dtype": str(weight.dtype),
            "same_memory": weight.data_ptr() == at,
            "gradient_kept": torch.equal(before, gradient),
            "master_moved": (master - start).double().norm().item(),
            "weight_moved": (weight.double() - start.bfloat16().double()).norm().item(),
            "along": ((start - master).double() * gradient.double()).sum().item(),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["weight_dtype"] != expected["weight_dtype"] or not seen["same_memory"]:
            return "weight must stay the BF16 tensor that was handed in: write into it with copy_()."
        if not seen["gradient_kept"]:
            return "The gradient was changed."
        for key, name in (("master_moved", "master"), ("weight_moved", "weight")):
            if seen[key] == 0:
                return (
                    f"After 300 steps `{name}` has not changed. Was every update rounded away, or was nothing written "
                    f"into it? (`{name} = ...` only gives the name to another tensor.)"
                )
        if seen["along"] < 0:
            return "The master moves along the gradient, uphill; it should move against it."
        once, gradient = torch.tensor(seen["once"]), torch.tensor(expected["gradient"])
        if not (once + 0.1 * gradient).norm() / gradient.norm() <= 1e-6:
            return "After a single step the master is off by a BF16 rounding: turn the gradient into FP32 first."
        moved, wanted = seen["master_moved"], expected["master_moved"]
        if not abs(moved - wanted) <= 0.01 * wanted:
            return f"After 300 steps of lr 1e-5 the master has moved by {moved:.4g}, not {wanted:.4g}."
        if not seen["nearest"]:
            return "The weight has changed, but it is not the BF16 number nearest to the master."
        return None


MASTER = (MasterKeepsSmallUpdates,)
