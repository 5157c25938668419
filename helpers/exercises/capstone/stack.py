"""Checks of four rungs of the ladder: micro-batches, checkpointing, a step by signs, gradients folded into means."""

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.models import ViT
from ...core.units import KiB, human_bytes
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance

ROWS, MICRO = 22, 5  # the last micro-batch has two rows
TOLERANCE = 1e-5  # relative, in FP32: sums in another order
Answer = Callable[..., Any]


def _task(seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = ViT(side=8, patch=4, layers=3, width=16, heads=2, inner=32)
    return model, torch.randn(ROWS, 1, 8, 8), torch.randint(10, (ROWS,))


def _flat(tensors: Any) -> list[float]:
    return torch.cat([t.detach().flatten() for t in tensors]).tolist()


def _gradients(model: nn.Module) -> list[float] | None:
    grads = [p.grad for p in model.parameters()]
    return None if any(g is None for g in grads) else _flat(grads)


class AccumulatesTheMean(Check):
    """accumulate adds the gradient of the mean over all rows, at most `micro` rows at a time, in order."""

    hint = (
        "How long do the activations of a micro-batch stay? Until its backward pass has used them.\n"
        "If the last micro-batch is smaller, the mean of the means is not the mean. By what should you divide each "
        "loss?\n"
        'F.cross_entropy(..., reduction="sum") / len(x), then backward(): gradients add up by themselves.'
    )

    @staticmethod
    def probe(seed: int, accumulate: Answer, *_: Answer) -> Evidence:
        model, x, y = _task(seed)
        seen: list[Tensor] = []
        model.register_forward_pre_hook(lambda module, given: seen.append(given[0].detach().clone()))
        waiting = _watch_graphs(model)
        for p in model.parameters():
            p.grad = torch.ones_like(p)  # adds to what is there
        hooks = _watch_gradients(model)
        weights = _flat(model.parameters())
        accumulate(model, x, y, MICRO)
        grads = _gradients(model)
        whole = torch.cat(seen) if seen else x[:0]
        return {
            "sizes": [len(part) for part in seen],
            "in order": whole.shape == x.shape and torch.equal(whole, x),
            "gradients": None if grads is None else [g - 1 for g in grads],
            "moved": weights != _flat(model.parameters()),
            "waiting": max(waiting, default=0),
            "hooks": len(hooks) > 0,
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
        if seen["waiting"] > 1:
            return (
                f"{seen['waiting']} micro-batches went through the model before the backward pass of the first of "
                "them, so the activations of all of them were in memory at once. When can they be freed?"
            )
        if not seen["hooks"]:
            return (
                "The gradients are right, but no parameter's hook has run, so fold would never get a gradient. "
                "Does accumulate call backward()?"
            )
        return None


def _watch_graphs(model: nn.Module) -> list[int]:
    """Return a list that gets, with each forward pass, how many of them still wait for their backward pass."""
    pending: set[int] = set()
    counts: list[int] = []

    def note(module: nn.Module, given: Any, logits: Tensor) -> None:
        number = len(counts)
        if logits.requires_grad:
            pending.add(number)
            logits.register_hook(lambda _: pending.discard(number))
        counts.append(len(pending))

    model.register_forward_hook(note)
    return counts


class RecomputesEachBlock(Check):
    """checkpoint_blocks makes each block save only its input and run again in the backward pass, and nothing else."""

    hint = (
        "torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False) calls function(x), and again later.\n"
        "block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False), for each of model.blocks."
    )

    @staticmethod
    def probe(seed: int, accumulate: Answer, checkpoint_blocks: Answer, *_: Answer) -> Evidence:
        model, x, y = _task(seed)
        names = [name for name, _ in model.named_parameters()]
        runs: list[int] = []
        for number, block in enumerate(model.blocks):
            block.norm_1.register_forward_hook(_noter(runs, number))
        checkpoint_blocks(model)
        with MemoryMeter(model) as meter:
            logits = model(x)
        forward = len(runs)
        F.cross_entropy(logits, y).backward()
        return {
            "forward": runs[:forward],
            "again": runs[forward:],
            "held": sum(meter.timeline[-1].held.values()),
            "logits": logits.detach().flatten().tolist(),
            "gradients": _gradients(model),
            "names": [names, [name for name, _ in model.named_parameters()]],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not relative_distance(seen["logits"], expected["logits"]) <= TOLERANCE:
            return "The model's outputs have changed. Each block should still compute the same output from its input."
        for when, moment in (("forward", "forward"), ("again", "backward")):
            mine, right = (sorted(runs[when]) for runs in (seen, expected))
            if mine != right:
                return (
                    f"In the {moment} pass, the blocks that ran are {mine}; each of {sorted(set(right))} should run "
                    "once."
                )
        if seen["gradients"] is None or not (relative_distance(seen["gradients"], expected["gradients"]) <= TOLERANCE):
            return "The gradients differ, or some are missing. Is use_reentrant=False passed to checkpoint?"
        if seen["again"] != expected["again"]:
            return (
                f"In the backward pass, the blocks are recomputed in the order {seen['again']}; it should be "
                f"{expected['again']}, one block at a time. How many blocks does one call of checkpoint contain?"
            )
        more = seen["held"] - expected["held"]
        if not more < KiB:
            return (
                f"After the forward pass, {human_bytes(more)} more are held than the inputs of the blocks need. What "
                "else does a block save?"
            )
        before, after = seen["names"]
        if before != after:
            name = next((name for name in after if name not in before), after[0] if after else "none")
            return (
                f"The parameters have different names now, for example {name!r}, so a checkpoint no longer fits the "
                "model. Keep each block where it is, and change what it does when it is called."
            )
        return None


def _noter(runs: list[int], number: int) -> Callable[..., None]:
    return lambda *_: runs.append(number)


def _means(model: nn.Module, seed: int) -> dict[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    means = {p: 1e-3 * torch.randn(p.shape, generator=generator) for p in model.parameters()}
    next(iter(means.values())).flatten()[:3] = 0
    return means


def _watch_gradients(model: nn.Module) -> list[int]:
    """Return a list that gets, whenever a gradient is complete, how many parameters hold one."""
    counts: list[int] = []

    def note(_: Tensor) -> None:
        counts.append(sum(p.grad is not None for p in model.parameters()))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(note)
    return counts


class StepsBySign(Check):
    """signum_step moves each parameter by lr against the sign of its mean; where the mean is 0, nothing moves."""

    hint = "mean.sign() is -1, 0 or 1. p.sub_(lr * mean.sign()) changes p in place."

    @staticmethod
    def probe(seed: int, accumulate: Answer, checkpoint_blocks: Answer, signum_step: Answer, fold: Answer) -> Evidence:
        model, _, _ = _task(seed)
        means = _means(model, seed)
        before, start = _flat(means.values()), _flat(model.parameters())
        lr = random.Random(seed).randint(11, 99) / 1000
        signum_step(means, lr)
        return {
            "lr": lr,
            "moved": [a - b for a, b in zip(_flat(model.parameters()), start, strict=True)],
            "means changed": before != _flat(means.values()),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["means changed"]:
            return "signum_step has changed the means; it should only move parameters."
        for mine, right in zip(seen["moved"], expected["moved"], strict=True):
            if not abs(mine - right) <= 1e-6:
                rate = f"a learning rate of {expected['lr']:g}"
                if math.isnan(mine):
                    return f"At {rate} a parameter became NaN; it should move by {right:.4g}. What if its mean is 0?"
                return f"A parameter moved by {mine:.4g}; it should move by {right:.4g} at {rate}."
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
        at_once = _watch_gradients(model)
        faded = [0.9 * mean for mean in before.values()]
        has_faded = relative_distance(_flat(means.values()), _flat(faded)) <= TOLERANCE
        for xs, ys in zip(x.split(8), y.split(8), strict=True):
            (F.cross_entropy(model(xs), ys, reduction="sum") / ROWS).backward()
            waiting.append(sum(p.grad is not None for p in model.parameters()))
        folded, most = _flat(means.values()), max(at_once, default=0)
        for handle in handles:
            handle.remove()
            runs += 1
        F.cross_entropy(model(x), y).backward()
        after = _flat(means.values())
        for handle in fold(means):  # the next update
            handle.remove()
        return {
            "faded": has_faded,
            "next": [new / old for new, old in zip(_flat(means.values()), after, strict=True) if old],
            "waiting": waiting,
            "at once": most,
            "means": folded,
            "handles": runs,
            "later": after != folded,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if any(seen["waiting"]):
            numbers = ", ".join(map(str, seen["waiting"]))
            return (
                f"After three micro-batches, {numbers} parameters still hold a gradient; none should. Does the hook "
                "set p.grad to None?"
            )
        if not relative_distance(seen["means"], expected["means"]) <= TOLERANCE:
            off = relative_distance(seen["means"], expected["means"])
            when = "" if seen["faded"] else " Right after fold, the means should be 0.9 times their old values."
            return f"After three micro-batches the means are off by {off:.2g} of their norm.{when}"
        if seen["at once"] > 1:
            return (
                f"During a backward pass, {seen['at once']} parameters hold a gradient at the same time. Each gradient "
                "should be added to its mean and freed as soon as it is complete, before the next ones exist."
            )
        if seen["later"]:
            return (
                "After the returned handles were removed, a backward pass still changed the means. Does fold return "
                "the handle of every hook?"
            )
        if not all(abs(factor - 0.9) <= 1e-3 for factor in seen["next"]):
            return (
                "The second call of fold should begin another update: it should multiply each mean by 0.9 again. What "
                "does fold keep from one call to the next?"
            )
        return None


STACK = (AccumulatesTheMean, RecomputesEachBlock, StepsBySign, FoldsGradients)
