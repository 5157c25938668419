"""Check of part 1: what the layer is before training."""

from typing import Any

import torch
from torch import nn

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.plain import plain
from .around import EXACT, around, flat, is_adapter, thin, trained, wrong_adapter

CASES = {"with a bias": True, "without a bias": False}


class StartsAsTheBase(Check):
    """At first the layer gives the base's output exactly; only A and B are trained, and training can begin."""

    points = 1
    hint = (
        "Print name, shape, dtype and requires_grad of each parameter. One of the two thin matrices starts at zero, "
        "the other must not: which one is multiplied by the input first?"
    )

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        return {name: StartsAsTheBase._one(seed, lora_linear, bias) for name, bias in CASES.items()}

    @staticmethod
    def _one(seed: int, lora_linear: type[nn.Module], bias: bool) -> Evidence:
        it = around(lora_linear, seed, (3, 6.0, 0.5), bias)
        seen: dict[str, Any] = {
            "trained": trained(it.layer),
            "given": [name for name, p in it.given.named_parameters() if p.requires_grad],
        }
        if not is_adapter(seen["trained"], 3):
            return seen
        it.layer.train()
        output = plain(it.layer(it.x))
        A, B = thin(it.layer)
        if output.requires_grad:
            output.square().sum().backward()
        others = [p for p in it.layer.parameters() if p is not A and p is not B]
        return seen | {
            "same": torch.equal(output, it.linear(it.x)),
            "output": flat(output),
            "rank of A": int(torch.linalg.matrix_rank(A.detach())),
            "B": B.detach().abs().max().item(),
            "gradient of B": 0.0 if B.grad is None else B.grad.norm().item(),
            "base has gradients": any(p.grad is not None for p in others),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            wrong = StartsAsTheBase._wrong(seen[case], want)
            if wrong:
                return f"Around a layer {case}: {wrong}"
        return None

    @staticmethod
    def _wrong(seen: Evidence, expected: Evidence) -> str | None:
        wrong = wrong_adapter(seen["trained"], 3)
        if wrong:
            return wrong
        if seen["given"]:
            return (
                f"the {' and '.join(seen['given'])} of the linear layer that was given can still be trained. Freeze "
                "that layer and keep it, not a copy."
            )
        if seen["B"] != 0:
            return "B (out, r) does not start at zero: before its first step the layer already changes the output."
        if not seen["same"] or not relative_distance(seen["output"], expected["output"]) <= EXACT:
            return "before training, in training mode, the output is not that of the base. Does dropout touch the base?"
        if seen["rank of A"] == 0:
            return "A and B are both zero: each one's gradient is multiplied by the other, so neither will ever move."
        if seen["rank of A"] < 3:
            return f"A starts with rank {seen['rank of A']} where 3 was asked for: are its rows alike?"
        if not seen["gradient of B"] > 0:
            return "B gets no gradient: is it cut off from the output by detach() or no_grad()?"
        if seen["base has gradients"]:
            return "the base's weights got gradients: they are not frozen."
        return None
