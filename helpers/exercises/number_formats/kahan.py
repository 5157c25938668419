"""Checks of compensated addition: the weight, what is still missing, where it goes next time, and the arguments."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..base import Check, Evidence

Add = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
STEPS = 400


def _case(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights, what they still lack (up to half a gap), and updates of some gaps."""
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.rand(400, generator=generator) + 1) * torch.exp2(torch.randint(-8, 3, (400,), generator=generator))
    weight = (weight * (torch.randint(2, (400,), generator=generator) * 2 - 1)).bfloat16()
    gap = torch.exp2(torch.frexp(weight.float())[1] - 8.0)
    lost = ((torch.rand(400, generator=generator) - 0.5) * gap).bfloat16()
    return weight, lost, 20 * torch.randn(400, generator=generator) * gap


def _nearest(x: Tensor) -> Tensor:
    return x.float().bfloat16().double()


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether nearly all numbers agree. Sums in FP32 depend on the order: one in the middle may go either way."""
    return (a != b).double().mean().item() <= 0.01


class WeightIsTheNearest(Check):
    """The new weight is the BF16 number nearest to weight + lost + update."""

    hint = (
        "What should the weight be now? Three numbers belong to it.\n"
        "Add all three in FP32, `weight.float() + lost.float() + update`, and round once, at the end."
    )

    @staticmethod
    def probe(seed: int, kahan_add: Add) -> Evidence:
        case = _case(seed)
        new, _ = kahan_add(*case)
        weight, lost, update = case
        with_more, _ = kahan_add(weight, 40 * lost, 0 * update)  # no BF16 sum can swallow so much
        return {
            "case": [t.double().tolist() for t in case],
            "weight": new.double().tolist(),
            "lost_arrives": bool((with_more != weight).double().mean() > 0.5),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        weight, lost, update = (torch.tensor(values, dtype=torch.float64) for values in expected["case"])
        yours, right = (torch.tensor(e["weight"], dtype=torch.float64) for e in (seen, expected))
        if _same(yours, right):
            return None
        if seen["lost_arrives"] and any(
            _same(yours, _nearest(_nearest(weight + lost) + added)) for added in (update, _nearest(update))
        ):
            return (
                "`weight + lost` is a sum of two BF16 tensors, so it is BF16, and `lost` is rounded away at once. "
                "Make the first of them FP32: `weight.float()`."
            )
        others = {
            "The weight has not changed.": weight,
            "`lost` has no part in the new weight.": _nearest(weight + update),
            "`lost` is subtracted; it is what the weight still lacks.": _nearest(weight - lost + update),
            "The update is subtracted; it should be added.": _nearest(weight + lost - update),
            "The update is rounded to BF16 before it is added.": _nearest(weight + lost + _nearest(update)),
        }
        for words, other in others.items():
            if _same(yours, other):
                return words
        return f"{(yours != right).double().mean():.0%} of the weights are not the nearest to weight + lost + update."


class LostIsWhatIsMissing(Check):
    """The new `lost` is what the new weight lacks of that sum, rounded to BF16."""

    hint = (
        "After rounding, how far is the weight from what it should be?\n"
        "`lost` is the sum in FP32 minus the new weight. The old `lost` is in the sum already."
    )

    @staticmethod
    def probe(seed: int, kahan_add: Add) -> Evidence:
        weight, lost, update = _case(seed)
        new, rest = kahan_add(weight, lost, update)
        wanted = weight.double() + lost.double() + update.double()
        return {
            "missing": (wanted - new.double()).tolist(),
            "lost": rest.double().tolist(),
            "before": lost.double().tolist(),
            "moved": (new.double() - weight.double()).tolist(),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        missing, yours, before, moved = (
            torch.tensor(values, dtype=torch.float64)
            for values in (seen["missing"], seen["lost"], expected["before"], seen["moved"])
        )
        size = missing.abs().max()
        if size == 0:
            return "The new weight lacks nothing of the sum, so it is not a BF16 number."

        def near(other: Tensor) -> bool:
            return bool((yours - other).norm() <= 0.01 * missing.norm())

        if near(missing):
            return None
        if near(-missing):
            return "`lost` has the wrong sign: weight + lost should be the sum."
        if near(missing + before):
            return "The old `lost` is counted twice: it went into the sum already."
        if near(_nearest(missing + moved)):
            return "Your `lost` is the sum minus the old weight, so it holds the whole update. Subtract the new weight."
        if near(missing - before):
            return "The new `lost` leaves out the old one, which has not all gone into the weight."
        if not yours.any():
            return "`lost` is zero everywhere; but the new weight is rounded, and something is missing from it."
        return (
            f"The new weights lack {missing.norm():.3g} of the sums (as a norm); your `lost` is off by "
            f"{(yours - missing).norm() / missing.norm():.0%} of that."
        )


class SmallUpdatesArrive(Check):
    """Hundreds of updates, each far below a gap, arrive."""

    hint = "What is left over from one step has to be in the sum of the next: nothing may be thrown away on the way."

    @staticmethod
    def probe(seed: int, kahan_add: Add) -> Evidence:
        weight, lost, update = _case(seed)
        start, lost = weight.double(), torch.zeros_like(lost)
        small = update.abs() / 1000
        for _ in range(STEPS):
            weight, lost = kahan_add(weight, lost, small)
        arrived = (weight.double() + lost.double() - start) / (STEPS * small.double())
        return {"share": arrived.median().item()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not abs(seen["share"] - expected["share"]) <= 0.02:
            return (
                f"After {STEPS} updates of a fiftieth of a gap, {seen['share']:.0%} of what was added has arrived "
                f"(median); {expected['share']:.0%} should."
            )
        return None


class ReturnsTwoBf16Tensors(Check):
    """Both results are BF16 tensors of the same shape, and the arguments stay as they were."""

    hint = "Return `weight, lost`, both after `.bfloat16()`. Operations that end in an underscore change an argument."

    @staticmethod
    def probe(seed: int, kahan_add: Add) -> Evidence:
        given = [t.view(20, 20) for t in _case(seed)]
        before = [t.clone() for t in given]
        results = kahan_add(*given)
        return {
            "dtypes": [str(t.dtype) for t in results],
            "shapes": [list(t.shape) for t in results],
            "untouched": [torch.equal(a, b) for a, b in zip(before, given, strict=True)],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, untouched in zip(("weight", "lost", "update"), seen["untouched"], strict=True):
            if not untouched:
                return f"`{name}`, which you were given, has changed."
        if seen["dtypes"] != expected["dtypes"]:
            return f"Two tensors in torch.bfloat16 are wanted; yours are in {seen['dtypes']}."
        if seen["shapes"] != expected["shapes"]:
            return f"Two tensors of shape (20, 20) are wanted; yours have {seen['shapes']}."
        return None


KAHAN = (WeightIsTheNearest, LostIsWhatIsMissing, SmallUpdatesArrive, ReturnsTwoBf16Tensors)
