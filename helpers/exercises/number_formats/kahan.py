"""Checks of compensated addition: the weight, what is still missing, where it goes next time, and the arguments."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..base import Check, Evidence

Add = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
STEPS = 400
NAMES = ("weight", "lost", "update")


def _case(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return weights of many sizes and zero, what they still lack (up to half a gap), and updates of some gaps."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.rand(400, generator=generator) + 1
    weight = weight * torch.exp2(torch.randint(-20, 3, (400,), generator=generator))
    weight = (weight * (torch.randint(2, (400,), generator=generator) * 2 - 1)).bfloat16()
    gap = torch.exp2(torch.frexp(weight.float())[1] - 8.0)
    lost = ((torch.rand(400, generator=generator) - 0.5) * gap).bfloat16()
    zero = torch.arange(400) % 20 == 0
    return weight.masked_fill(zero, 0), lost.masked_fill(zero, 0), 20 * torch.randn(400, generator=generator) * gap


def observe(seed: int, kahan_add: Add) -> Evidence:
    """Add once, once with a `lost` that no BF16 sum can swallow, hundreds of times a little, and in other shapes."""
    case = _case(seed)

    def added(weight: Tensor, lost: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        return kahan_add(weight.clone(), lost.clone(), update.clone())

    new, rest = added(*case)
    weight, lost, update = case
    with_more, _ = added(weight, 40 * lost, 0 * update)
    moving, left, small = weight, torch.zeros_like(lost), update.abs() / 1000
    for _ in range(STEPS):
        moving, left = added(moving, left, small)
    arrived = (moving.double() + left.double() - weight.double()) / (STEPS * small.double())
    seen: Evidence = {
        "case": [t.double().tolist() for t in case],
        "weight": new.double().tolist(),
        "lost": rest.double().tolist(),
        "lost_arrives": bool((with_more != weight).double().mean() > 0.5),
        "share": arrived.median().item(),
        "dtypes": [],
        "shapes": [],
        "untouched": [],
    }
    for given in ([t.view(20, 20) for t in case], [t[1] for t in case]):
        before = [t.clone() for t in given]
        results = kahan_add(*given)
        seen["dtypes"] += [str(t.dtype) for t in results]
        seen["shapes"].append([list(t.shape) for t in results])
        seen["untouched"].append([torch.equal(a, b) for a, b in zip(before, given, strict=True)])
    return seen


def _nearest(x: Tensor) -> Tensor:
    return x.float().bfloat16().double()


def _few(wrong: Tensor) -> bool:
    """Whether hardly any number is wrong. Sums in FP32 depend on the order: one in the middle may go either way."""
    return wrong.double().mean().item() <= 0.01


def _numbers(evidence: Evidence, *names: str) -> list[Tensor]:
    return [torch.tensor(evidence[name], dtype=torch.float64) for name in names]


class WeightIsTheNearest(Check):
    """The new weight is the BF16 number nearest to weight + lost + update."""

    hint = (
        "What should the weight be now? It is made up of three numbers.\n"
        "The sum of two BF16 tensors is BF16, too. Which format has room for all three, and how many times do you "
        "round?"
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        weight, lost, update = _numbers(expected, "case")[0]
        (yours,), (right,) = _numbers(seen, "weight"), _numbers(expected, "weight")
        wrong = yours != right
        if _few(wrong):
            return None
        if seen["lost_arrives"] and any(
            _few(yours != _nearest(_nearest(weight + lost) + added)) for added in (update, _nearest(update))
        ):
            return (
                "`weight + lost` is a sum of two BF16 tensors, so it is BF16, and `lost` is rounded away at once. "
                "Make the first of them FP32: `weight.float()`."
            )
        others = {
            "The new weight equals the old one. Return the rounded sum of all three.": weight,
            "The new weight does not include `lost`.": _nearest(weight + update),
            "`lost` is subtracted; it is what the weight still lacks.": _nearest(weight - lost + update),
            "The update is subtracted; it should be added.": _nearest(weight + lost - update),
            "The update is rounded to BF16 before it is added.": _nearest(weight + lost + _nearest(update)),
        }
        for words, other in others.items():
            if _few(yours != other):
                return words
        at = int(wrong.double().argmax())
        return (
            f"{wrong.double().mean():.0%} of the weights are not the nearest to weight + lost + update: "
            f"{weight[at]:.6g} + {lost[at]:.3g} + {update[at]:.6g} becomes {yours[at]:.6g}; "
            f"it should be {right[at]:.6g}."
        )


class LostIsWhatIsMissing(Check):
    """The new `lost` is that sum minus the new weight, rounded to BF16."""

    hint = (
        "After rounding, how far is the weight from what it should be?\n"
        "`lost` is the sum in FP32 minus the new weight. The old `lost` is in the sum already."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        (case,), (new, yours) = _numbers(expected, "case"), _numbers(seen, "weight", "lost")
        weight, before, _ = case
        missing, moved = case.sum(0) - new, new - weight
        if not missing.any():
            return "The new weight lacks nothing of the sum, so it is not a BF16 number."

        def off(other: Tensor) -> Tensor:
            room = torch.exp2(torch.frexp(other)[1] - 9.0) + 2.0**-22 * case.abs().sum(0)
            return ~((yours - other).abs() <= room)  # half a gap of BF16, and what a sum in FP32 loses

        if _few(off(missing)):
            return None
        others = {
            "`lost` has the wrong sign: weight + lost should be the sum.": -missing,
            "The old `lost` is counted twice: it went into the sum already.": missing + before,
            "Your `lost` is the sum minus the old weight, so it holds the whole update. Subtract the new weight.": (
                missing + moved
            ),
            "The new `lost` leaves out the old one, not all of which has gone into the weight.": missing - before,
            "`lost` is zero everywhere, but the new weight was rounded, so something is missing from it.": 0 * missing,
        }
        for words, other in others.items():
            if _few(off(other)):
                return words
        wrong = off(missing).double()
        at = int(wrong.argmax())
        return (
            f"{wrong.mean():.0%} of `lost` is not what the weight lacks, rounded to BF16: where the sum is "
            f"{case.sum(0)[at]:.8g} and your new weight {new[at]:.6g}, {missing[at]:.4g} is missing; your `lost` is "
            f"{yours[at]:.4g}."
        )


class SmallUpdatesArrive(Check):
    """Hundreds of updates, each far smaller than a gap, all arrive."""

    hint = "What is left over from one step has to be in the sum of the next: nothing may be thrown away on the way."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not abs(seen["share"] - expected["share"]) <= 0.02:
            return (
                f"After {STEPS} updates of a fiftieth of a gap, {seen['share']:.0%} of what was added has arrived "
                f"(median); {expected['share']:.0%} should. Is `lost` what the weight lacks, and part of the next sum?"
            )
        return None


class ReturnsTwoBf16Tensors(Check):
    """Both results are BF16 tensors of the same shape, and the arguments stay as they were."""

    hint = "Return `weight, lost`, both after `.bfloat16()`. Operations that end in an underscore change an argument."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for untouched in seen["untouched"]:
            for name, same in zip(NAMES, untouched, strict=True):
                if not same:
                    return (
                        f"Your function changed `{name}`. Operations that end in an underscore write into their tensor."
                    )
        if seen["dtypes"] != expected["dtypes"]:
            return f"Expected two tensors in torch.bfloat16; yours are in {', '.join(seen['dtypes'][:2])}."
        for yours, wanted in zip(seen["shapes"], expected["shapes"], strict=True):
            if yours != wanted:
                return f"For arguments of shape {wanted[0]} you return shapes {yours}."
        return None


KAHAN = (WeightIsTheNearest, LostIsWhatIsMissing, SmallUpdatesArrive, ReturnsTwoBf16Tensors)
