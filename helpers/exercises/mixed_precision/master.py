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
        master = torch.rand(500) + 0.5
        weight = master.bfloat16()
        at = weight.data_ptr()
        start = master.clone()
        gradient = torch.randn(500).bfloat16()
        before = gradient.clone()
        for _ in range(300):
            sgd_with_master(weight, master, gradient, 1e-5)
        once = torch.zeros(500)
        sgd_with_master(torch.zeros(500).bfloat16(), once, gradient, 0.1)
        return {
            "gradient": gradient.float().tolist(),
            "once": once.tolist(),
            "weight_dtype": str(weight.dtype),
            "same_memory": weight.data_ptr() == at,
            "gradient_kept": torch.equal(before, gradient),
            "master_moved": (master - start).double().norm().item(),
            "weight_moved": (weight.double() - start.bfloat16().double()).norm().item(),
            "along": torch.dot((start - master).double(), gradient.double()).item(),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["weight_dtype"] != expected["weight_dtype"] or not seen["same_memory"]:
            return "weight must stay the BF16 tensor that was handed in: write into it with copy_()."
        if not seen["gradient_kept"]:
            return "The gradient was changed."
        for key, name in (("master_moved", "master"), ("weight_moved", "weight")):
            if seen[key] == 0:
                return f"{name} has not changed. `{name} = ...` only gives the name to another tensor: write in place."
        if seen["along"] < 0:
            return "The master moves along the gradient, uphill; it should move against it."
        once, gradient = torch.tensor(seen["once"]), torch.tensor(expected["gradient"])
        if not (once + 0.1 * gradient).norm() / gradient.norm() <= 1e-6:
            return "After a single step the master is off by a BF16 rounding: turn the gradient into FP32 first."
        for key, words in (("master_moved", "the master"), ("weight_moved", "the BF16 weight")):
            if not abs(seen[key] - expected[key]) <= 0.01 * expected[key]:
                return (
                    f"After 300 steps of lr 1e-5 {words} has moved by {seen[key]:.4g}, not {expected[key]:.4g}. "
                    "Is the update added in FP32, and to the master?"
                )
        return None


MASTER = (MasterKeepsSmallUpdates,)
