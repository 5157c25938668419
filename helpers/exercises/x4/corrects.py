"""Check of part 1: what the layer adds to the base's output, and its gradients."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Check, Evidence
from ..probing.plain import plain
from .around import around, fill, flat, inputs_of, is_adapter, tensors_of, trained, wrong_adapter, wrong_numbers

CASES = ((2, 6.0, True), (4, 6.0, True), (4, 1.0, False))  # rank, alpha, whether the base has a bias
DROPOUT = 0.25
CALLS = 100
SLACK = 0.05  # of a share of 1,200 draws: four standard deviations


def _gradient(p: Tensor) -> list[float]:
    return flat(torch.zeros_like(p) if p.grad is None else p.grad)


class CorrectsByAlphaOverRank(Check):
    """The output is x Wᵀ + bias + (alpha / rank) (x Aᵀ) Bᵀ, with right gradients; dropout only while training."""

    points = 1
    hint = (
        "Compare rank 2 and alpha 6 with rank 4 and alpha 6 by hand. nn.Dropout knows by itself when it is at work; "
        "F.dropout must be told: F.dropout(x, p, self.training)."
    )

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        cases, restless = [], False
        for rank, alpha, bias in CASES:
            it = around(lora_linear, seed, (rank, alpha, 0.5), bias)
            seen = trained(it.layer)
            if not is_adapter(seen, rank):
                return {"trained": seen, "rank": rank}
            A, B = fill(it.layer, seed)
            inputs = inputs_of(it.linear, A, B, it.x)
            it.layer.eval()
            restless |= not torch.equal(plain(it.layer(it.x)), it.layer(it.x))
            x = it.x.clone().requires_grad_()
            y = it.layer(x)
            if y.requires_grad:
                y.square().sum().backward()
            outcome = {"output": flat(y), "gradient of A": _gradient(A), "gradient of B": _gradient(B)}
            cases.append({"inputs": inputs, "shape": list(y.shape)} | outcome | {"gradient of x": _gradient(x)})
        return {"cases": cases, "restless": restless} | CorrectsByAlphaOverRank._dropout(seed, lora_linear)

    @staticmethod
    def _dropout(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        """Look at the correction of single inputs, of their twins and of pairs, in training mode, a hundred times."""
        it = around(lora_linear, seed, (4, 6.0, DROPOUT))
        A, B = fill(it.layer, seed)
        it.layer.train()
        eye = torch.eye(12, dtype=torch.float64)  # a row is one input: its correction is whole, or none
        x = torch.stack([eye, eye, eye + eye.roll(1, 0)])  # (3, 12, 12)
        corrections = torch.stack(
            [it.layer(x).reshape(3, 12, 7) - it.linear(x) for _ in range(CALLS)]
        ).detach()  # (100, 3, 12, 7)
        none = corrections.abs().amax(-1) < 1e-12  # (100, 3, 12)
        single = corrections[:, 0]
        whole = [single[~none[:, 0, i], i] for i in range(12)]  # of each input those not dropped, (n, 7)
        return {
            "single inputs": inputs_of(it.linear, A, B, eye),
            "dropped": none[:, 0].double().mean().item(),
            "dropped with its twin": (none[:, 0] & none[:, 1]).double().mean().item(),
            "dropped in pairs": none[:, 2].double().mean().item(),
            "least and most": [[flat(rows.amin(0)), flat(rows.amax(0))] if len(rows) else [] for rows in whole],
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "trained" in seen:
            return wrong_adapter(seen["trained"], seen["rank"])
        if seen["restless"]:
            return "Two calls in evaluation mode, with the same input, differ: dropout is at work there."
        for (rank, alpha, bias), got, want in zip(CASES, seen["cases"], expected["cases"], strict=True):
            case = f"rank {rank}, alpha {alpha:g}, {'' if bias else 'no bias, '}evaluation mode"
            if got["shape"] != want["shape"]:
                return f"{case}: for inputs (2, 5, 12) the output is {tuple(got['shape'])}, not (2, 5, 7)."
            for name, right in CorrectsByAlphaOverRank._right(want["inputs"], alpha / rank).items():
                wrong = wrong_numbers(f"the {name}", got[name], right)
                if wrong:
                    return f"{case}: {wrong}"
        return CorrectsByAlphaOverRank._wrong_dropout(seen, expected)

    @staticmethod
    def _right(inputs: Evidence, scale: float) -> dict[str, list[float]]:
        """Return the output by the formula, and the gradients of the sum of its squares."""
        weight, bias, A, B, x = tensors_of(inputs)
        y = F.linear(x, weight, bias) + scale * (x @ A.T) @ B.T
        gradients = torch.autograd.grad(y.square().sum(), (A, B, x))
        names = ("output", "gradient of A", "gradient of B", "gradient of x")
        return {name: flat(tensor) for name, tensor in zip(names, (y, *gradients), strict=True)}

    @staticmethod
    def _wrong_dropout(seen: Evidence, expected: Evidence) -> str | None:
        _, _, A, B, eye = tensors_of(expected["single inputs"])
        full = 6.0 / 4 * (eye @ A.T) @ B.T / (1 - DROPOUT)  # (12, 7)
        for row, both in zip(full, seen["least and most"], strict=True):
            if not all(((torch.tensor(end, dtype=torch.float64) - row).abs() < 1e-9).all() for end in both):
                return (
                    "In training mode a single input is neither dropped nor kept at 1 / (1 - p) of its correction. "
                    "Dropout belongs in front of A."
                )
        if not abs(seen["dropped"] - DROPOUT) <= SLACK:
            return f"With dropout 0.25, {seen['dropped']:.0%} of the inputs were dropped in training mode."
        if not seen["dropped with its twin"] <= DROPOUT**2 + SLACK:
            return "Two equal rows of the input always drop the same elements: each row has draws of its own."
        if not seen["dropped in pairs"] <= DROPOUT**2 + SLACK:
            return "Dropout drops whole rows of the input: each element has a draw of its own."
        return None
