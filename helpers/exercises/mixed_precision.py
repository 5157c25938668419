"""Practice checks of mixed precision: underflow counted, and master weights."""

from collections.abc import Callable

import torch
from torch import Tensor

from .base import Check, Evidence, Part


class CountsWhatFp16Loses(Check):
    """The share of nonzero gradients that become zero in FP16, with the scale applied."""

    hint = "Multiply by the scale, cast with .half(), and compare with zero; divide by the number that were not zero."

    @staticmethod
    def probe(seed: int, underflow_share: Callable[[Tensor, float], float]) -> Evidence:
        magnitudes = torch.exp2(torch.empty(4000).uniform_(-40, 0))
        signs = torch.randint(2, (4000,)) * 2 - 1
        with_zeros = (magnitudes * signs) * (torch.rand(4000) > 0.25)
        edges = torch.tensor([2.0**-24, 2.0**-25, 2.0**-25 * 1.01, -(2.0**-26), 1.0])
        cases = {
            "gradients of all sizes": (magnitudes * signs, 1.0),
            "the same, scale 1024": (magnitudes * signs, 1024.0),
            "a quarter of them zero from the start": (with_zeros, 1.0),
            "numbers at the edge of FP16": (edges, 1.0),
            "all zero": (torch.zeros(10), 1.0),
        }
        shares, unchanged = {}, True
        for name, (gradient, scale) in cases.items():
            before = gradient.clone()
            shares[name] = float(underflow_share(gradient, scale))
            unchanged &= torch.equal(before, gradient)
        return {"shares": shares, "unchanged": unchanged}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["unchanged"]:
            return "The gradient handed in was changed. Work on a copy: gradient * scale makes one."
        for name, want in expected["shares"].items():
            got = seen["shares"][name]
            if not abs(got - want) < 1e-6:
                return f"{name}: you say {got:.4f}; {want:.4f} of the nonzero elements are lost."
        return None


class MasterKeepsSmallUpdates(Check):
    """Updates too small for a BF16 weight add up in the FP32 master, and the weight follows."""

    hint = "Three lines: gradient to FP32, subtract lr times it from master in place, copy master into weight in place."

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


PARTS = (
    Part("mixed_precision.underflow", ("underflow_share",), (CountsWhatFp16Loses,)),
    Part("mixed_precision.master", ("sgd_with_master",), (MasterKeepsSmallUpdates,)),
)
