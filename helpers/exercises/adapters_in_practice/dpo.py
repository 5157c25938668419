"""Preference training: sums of an answer's log-probabilities, and the DPO loss of pairs of them."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..base import Check, Evidence
from ..probing.distance import relative_distance

TOLERANCE = 1e-6  # relative, in FP64
BETA = 0.3
Answers = Callable[..., Any]


def _rows(seed: int) -> tuple[Tensor, Tensor]:
    """Return logits (4, 10, 12) in FP64 and labels (4, 10): answers in the middle, at the end, none."""
    draw = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(4, 10, 12, dtype=torch.float64, generator=draw)
    labels = torch.full((4, 10), -100)
    for row, (start, end) in enumerate(((3, 7), (5, 10), (2, 4))):
        labels[row, start:end] = torch.randint(1, 12, (end - start,), generator=draw)
    labels[2, 2] = 0
    return logits, labels


class SumsTheAnswer(Check):
    """answer_log_probs sums ln p over the tokens of each answer: its neighbors, prompts and padding do not count."""

    hint = (
        "The output at position i predicts the label at position i + 1: which two slices belong together?\n"
        "Take log_softmax over the vocabulary, then gather the label's entry. A label of -100 is not an index.\n"
        "Multiply by labels != -100, then sum over the row."
    )

    @staticmethod
    def probe(seed: int, answer_log_probs: Answers, dpo_loss: Answers) -> Evidence:
        logits, labels = _rows(seed)
        leaf, given = logits.clone().requires_grad_(), labels.clone()
        sums = answer_log_probs(leaf, given)
        if not isinstance(sums, Tensor):
            return {"returned": type(sums).__name__}
        if sums.requires_grad:
            (sums.flatten() * torch.arange(1.0, sums.numel() + 1)).sum().backward()
        return {
            "shape": list(sums.shape),
            "dtype": str(sums.dtype),
            "sums": sums.detach().flatten().tolist(),
            "gradient": [] if leaf.grad is None else leaf.grad.flatten().tolist(),
            "changed": not (torch.equal(leaf.detach(), logits) and torch.equal(given, labels)),
            "counts": (labels != -100).sum(1).tolist(),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "returned" in seen:
            return f"answer_log_probs returns an object of type {seen['returned']}; it should be a tensor (rows,)."
        if seen["shape"] != expected["shape"] or seen["dtype"] != expected["dtype"]:
            return (
                f"answer_log_probs returns shape {seen['shape']} in {seen['dtype']}; it should be "
                f"{expected['shape']} in {expected['dtype']}."
            )
        if seen["changed"]:
            return "answer_log_probs has changed its arguments."
        if relative_distance(seen["sums"], expected["sums"]) > TOLERANCE:
            means = [s / max(n, 1) for s, n in zip(expected["sums"], expected["counts"], strict=True)]
            if relative_distance(seen["sums"], means) <= TOLERANCE:
                return "answer_log_probs returns the mean over the answer's tokens; it should be their sum."
            rows = zip(seen["sums"], expected["sums"], strict=True)
            row = next(i for i, (a, b) in enumerate(rows) if not math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9))
            return f"Row {row}: the sum should be {expected['sums'][row]:.6g}; it is {seen['sums'][row]:.6g}."
        if not relative_distance(seen["gradient"], expected["gradient"]) <= TOLERANCE:
            return "The gradient of the sums with respect to the logits is missing or wrong. Was something detached?"
        return None


def _loss(dpo_loss: Answers, four: list[Tensor]) -> Evidence:
    """Note the loss of pairs and its gradients for the four sums."""
    leaves = [t.clone().requires_grad_() for t in four]
    loss = dpo_loss(*leaves, BETA)
    if not isinstance(loss, Tensor):
        return {"returned": type(loss).__name__}
    if loss.requires_grad:
        loss.sum().backward()
    return {
        "shape": list(loss.shape),
        "changed": not all(torch.equal(leaf.detach(), t) for leaf, t in zip(leaves, four, strict=True)),
        "loss": repr(float(loss.detach().mean())),
        "margins": [repr(margin) for margin in ((four[0] - four[2]) - (four[1] - four[3])).tolist()],
        "gradients": [None if t.grad is None else [repr(g) for g in t.grad.tolist()] for t in leaves],
    }


class PrefersTheChosen(Check):
    """dpo_loss is the mean of -ln sigmoid(beta · margin) over the pairs, with matching gradients."""

    hint = (
        "How far is ln p of the chosen answer above the reference's? And how far is that of the rejected answer?\n"
        "margin = (chosen - ref_chosen) - (rejected - ref_rejected); the loss falls as the margin rises.\n"
        "The mean over pairs comes last, after the sigmoid."
    )

    @staticmethod
    def probe(seed: int, answer_log_probs: Answers, dpo_loss: Answers) -> Evidence:
        draw = torch.Generator().manual_seed(seed)
        four = [-20 + 5 * torch.randn(6, dtype=torch.float64, generator=draw) for _ in range(4)]
        return {
            "a policy unlike its reference": _loss(dpo_loss, four),
            "a policy equal to its reference": _loss(dpo_loss, four[:2] * 2),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            wrong = _wrong_loss(case, got, want)
            if wrong:
                return wrong
            for name, mine, right in zip(("chosen", "rejected"), got["gradients"], want["gradients"], strict=False):
                if mine is None or relative_distance([*map(float, mine)], [*map(float, right)]) > TOLERANCE:
                    return f"{case}: the gradient of {name} is missing or wrong. Was something detached?"
        return None


def _wrong_loss(case: str, got: Evidence, want: Evidence) -> str | None:
    if "returned" in got:
        return f"{case}: dpo_loss returns an object of type {got['returned']}; it should be a tensor."
    if got["shape"] != want["shape"]:
        return f"{case}: dpo_loss returns shape {got['shape']}; it should be one number, the mean over pairs."
    if got["changed"]:
        return f"{case}: dpo_loss has changed its arguments; work on new tensors."
    mine, right = float(got["loss"]), float(want["loss"])
    if not math.isclose(mine, right, rel_tol=1e-6):
        return f"{case}: the loss should be {right:.6g}; it is {mine:.6g}.{_cause(mine, want['margins'])}"
    return None


def _cause(loss: float, margins: list[str]) -> str:
    """Name the mistake that gives this loss, or none."""
    margin = torch.tensor([*map(float, margins)], dtype=torch.float64)
    mistakes = {
        "with chosen and rejected swapped, or with the sign of the margin reversed": -BETA * margin,
        "without beta": margin,
    }
    for mistake, wrong in mistakes.items():
        if math.isclose(loss, -F.logsigmoid(wrong).mean().item(), rel_tol=1e-6):
            return f" That is the loss {mistake}."
    return ""


class LeavesTheReferenceAlone(Check):
    """No gradient flows into the reference's sums."""

    hint = "The reference does not learn. Use ref_chosen.detach() and ref_rejected.detach()."
    probe = staticmethod(PrefersTheChosen.probe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, got in seen.items():
            for name, gradient in zip(("ref_chosen", "ref_rejected"), got.get("gradients", [])[2:], strict=False):
                if gradient is not None and any(float(g) for g in gradient):
                    return f"{case}: {name} gets a gradient; it should not."
        return None


class StaysFinite(Check):
    """Differences of thousands of nats give a finite loss and finite gradients, in FP32."""

    hint = "sigmoid(-1000) is 0 and its logarithm is minus infinity. F.logsigmoid computes both in one step."
    after = ("prefers_the_chosen",)

    @staticmethod
    def probe(seed: int, answer_log_probs: Answers, dpo_loss: Answers) -> Evidence:
        near, far = torch.tensor([-10.0, -12.0]), torch.tensor([-9000.0, -8000.0])
        return {
            "the rejected answer far ahead": _loss(dpo_loss, [far, near, near, near]),
            "the chosen answer far ahead": _loss(dpo_loss, [near, far, near, near]),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if "returned" in got:
                return _wrong_loss(case, got, want)
            mine, right = float(got["loss"]), float(want["loss"])
            if not math.isclose(mine, right, rel_tol=1e-4, abs_tol=1e-6):
                return f"{case}: the loss should be {right:.6g}; it is {mine:.6g}. Do you take the logarithm of a zero?"
            for gradient in got["gradients"][:2]:
                if gradient is None or not all(math.isfinite(float(g)) for g in gradient):
                    return f"{case}: a gradient is missing or not finite."
        return None


DPO = (SumsTheAnswer, PrefersTheChosen, LeavesTheReferenceAlone, StaysFinite)
