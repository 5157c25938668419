"""Checks of four rungs of the ladder: micro-batches, checkpointing, a step by signs, gradients folded into means."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.models import ViT
from ..base import Check, Evidence
from ..probing.distance import relative_distance

ROWS, MICRO = 22, 5  # the last micro-batch has two rows
TOLERANCE = 1e-5  # relative, in FP32: sums in another order
Answer = Callable[..., Any]


def _task(seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = ViT(side=8, patch=4, layers=2, width=16, heads=2, inner=32)
    return model, torch.randn(ROWS, 1, 8, 8), torch.randint(10, (ROWS,))


def _flat(tensors: Any) -> list[float]:
    return torch.cat([t.detach().flatten() for t in tensors]).tolist()


def _gradients(model: nn.Module) -> list[float] | None:
    grads = [p.grad for p in model.parameters()]
    return None if any(g is None for g in grads) else _flat(grads)


class AccumulatesTheMean(Check):
    """accumulate adds the gradient of the mean over all rows, at most `micro` rows at a time, in order."""

    hint = (
        "If the last micro-batch is smaller, the mean of the means is not the mean. By what should you divide each "
        "loss?\n"
        'F.cross_entropy(..., reduction="sum") / len(x), then backward(): gradients add up by themselves.'
    )

    @staticmethod
    def probe(seed: int, accumulate: Answer, *_: Answer) -> Evidence:
        model, x, y = _task(seed)
        seen: list[Tensor] = []
        model.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach().clone()))
        for p in model.parameters():
            p.grad = torch.ones_like(p)  # adds to what is there
        weights = _flat(model.parameters())
        accumulate(model, x, y, MICRO)
        grads = _gradients(model)
        whole = torch.cat(seen) if seen else x[:0]
        return {
            "sizes": [len(part) for part in seen],
            "in order": whole.shape == x.shape and torch.equal(whole, x),
            "gradients": None if grads is None else [g - 1 for g in grads],
            "moved": weights != _flat(model.parameters()),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if any(size > MICRO for size in seen["sizes"]):
            return f"A micro-batch of {max(seen['sizes'])} rows went through the model; at most {MICRO} are allowed."
        if not seen["in order"]:
            return f"The model saw micro-batches of {seen['sizes']} rows; all {ROWS} rows should pass once, in order."
        if seen["moved"]:
            return "accumulate has changed weights; it should only add to gradients."
        if seen["gradients"] is None:
            return "Some parameters have no gradient after accumulate. Is backward() called for each micro-batch?"
        off = relative_distance(seen["gradients"], expected["gradients"])
        if not off <= TOLERANCE:
            mine, right = torch.tensor(seen["gradients"]), torch.tensor(expected["gradients"])
            times = float(mine @ right / (right @ right))
            return (
                f"The gradient is off by {off:.2g} of its norm ({times:.3g} times the right one, along its direction). "
                "By what do you divide each micro-batch's loss, and do you keep earlier gradients?"
            )
        return None


class RecomputesEachBlock(Check):
    """checkpoint_blocks makes each block run again in the backward pass; outputs and gradients stay the same."""

    hint = (
        "torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False) calls function(x), and again later.\n"
        "block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False), for each of model.blocks."
    )

    @staticmethod
    def probe(seed: int, accumulate: Answer, checkpoint_blocks: Answer, *_: Answer) -> Evidence:
        model, x, y = _task(seed)
        runs = [0] * len(model.blocks)
        for number, block in enumerate(model.blocks):
            block.norm_1.register_forward_hook(_counter(runs, number))
        checkpoint_blocks(model)
        logits = model(x)
        forward = list(runs)
        F.cross_entropy(logits, y).backward()
        return {
            "forward": forward,
            "again": [a - b for a, b in zip(runs, forward, strict=True)],
            "logits": logits.detach().flatten().tolist(),
            "gradients": _gradients(model),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if relative_distance(seen["logits"], expected["logits"]) > TOLERANCE:
            return "The model's outputs have changed. Each block should still be called with its input alone."
        if seen["again"] != expected["again"] or seen["forward"] != expected["forward"]:
            return (
                f"The blocks ran {seen['forward']} times in the forward pass and {seen['again']} times in the "
                f"backward pass; they should run {expected['forward']} and {expected['again']} times."
            )
        if seen["gradients"] is None or relative_distance(seen["gradients"], expected["gradients"]) > TOLERANCE:
            return "The gradients differ, or some are missing. Is use_reentrant=False passed to checkpoint?"
        return None


def _counter(runs: list[int], number: int) -> Callable[..., None]:
    def count(*_: Any) -> None:
        runs[number] += 1

    return count


def _means(model: nn.Module, seed: int) -> dict[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = {p: 1e-3 * torch.randn(p.shape, generator=generator) for p in model.parameters()}
    next(iter(means.values())).flatten()[:3] = 0
    return means


class StepsBySign(Check):
    """signum_step moves each parameter by lr against the sign of its mean; where the mean is 0, nothing moves."""

    hint = "mean.sign() is -1, 0 or 1. p.sub_(lr * mean.sign()) changes p in place."

    @staticmethod
    def probe(seed: int, accumulate: Answer, checkpoint_blocks: Answer, signum_step: Answer, fold: Answer) -> Evidence:
        model, _, _ = _task(seed)
        means = _means(model, seed)
        before, start = _flat(means.values()), _flat(model.parameters())
        signum_step(means, 0.01)
        return {
            "moved": [a - b for a, b in zip(_flat(model.parameters()), start, strict=True)],
            "means changed": before != _flat(means.values()),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["means changed"]:
            return "signum_step has changed the means; it should only move parameters."
        for mine, right in zip(seen["moved"], expected["moved"], strict=True):
            if abs(mine - right) > 1e-6:
                return f"A parameter moved by {mine:.4g}; it should move by {right:.4g} at a learning rate of 0.01."
        return None


class FoldsGradients(Check):
    """fold decays each mean once, then adds each gradient to it and frees it, until the hooks are removed."""

    hint = (
        "Multiply each mean by 0.9 once per update, in fold itself and not in the hook.\n"
        "p.register_post_accumulate_grad_hook(function) calls function(p) when p.grad is complete, and returns a "
        "handle.\n"
        "In the hook, add 0.1 * p.grad to the mean and set p.grad to None."
    )

    @staticmethod
    def probe(seed: int, accumulate: Answer, checkpoint_blocks: Answer, signum_step: Answer, fold: Answer) -> Evidence:
        model, x, y = _task(seed)
        means, waiting, runs = _means(model, seed), [], 0
        before = {p: mean.clone() for p, mean in means.items()}
        handles = fold(means)
        faded = [0.9 * mean for mean in before.values()]
        at_once = relative_distance(_flat(means.values()), _flat(faded)) <= TOLERANCE
        for xs, ys in zip(x.split(8), y.split(8), strict=True):
            (F.cross_entropy(model(xs), ys, reduction="sum") / ROWS).backward()
            waiting.append(sum(p.grad is not None for p in model.parameters()))
        folded = _flat(means.values())
        for handle in handles:
            handle.remove()
            runs += 1
        F.cross_entropy(model(x), y).backward()
        after = _flat(means.values())
        return {"faded": at_once, "waiting": waiting, "means": folded, "handles": runs, "later": after != folded}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if any(seen["waiting"]):
            numbers = ", ".join(map(str, seen["waiting"]))
            return (
                f"After three micro-batches, {numbers} parameters still hold a gradient; none should. Does the hook "
                "set p.grad to None?"
            )
        if relative_distance(seen["means"], expected["means"]) > TOLERANCE:
            off = relative_distance(seen["means"], expected["means"])
            when = "" if seen["faded"] else " Right after fold, the means should be 0.9 times their old values."
            return f"After three micro-batches the means are off by {off:.2g} of their norm.{when}"
        if seen["later"]:
            return (
                "After the returned handles were removed, a backward pass still changed the means. Does fold return "
                "the handle of every hook?"
            )
        return None


STACK = (AccumulatesTheMean, RecomputesEachBlock, StepsBySign, FoldsGradients)
