"""Check of part 1: merging the correction into the weight, and taking it out again."""

import torch
import torch.nn.functional as F
from torch import nn

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from .around import (
    EXACT,
    around,
    fill,
    flat,
    inputs_of,
    is_adapter,
    tensors_of,
    trained,
    wrong_adapter,
    wrong_numbers,
)

CALLS = ("merged", "merged twice", "unmerged", "unmerged twice")
SCALE = 4.5 / 3  # alpha / rank


class MergesOnce(Check):
    """merge() writes the correction into the weight, unmerge() takes it out; calling either twice changes nothing."""

    points = 1
    hint = "The layer must remember whether it is merged, and its forward pass must look."

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        it = around(lora_linear, seed, (3, 4.5, 0.0))
        seen = trained(it.layer)
        if not is_adapter(seen, 3):
            return {"trained": seen}
        A, B = fill(it.layer, seed)
        inputs, weight = inputs_of(it.linear, A, B, it.x), it.given.weight
        it.layer.eval()
        with torch.no_grad():
            before, calls = flat(it.layer(it.x)), []
            for call in CALLS:
                it.layer.unmerge() if call.startswith("unmerged") else it.layer.merge()
                it.layer.train(call == "merged twice")  # no dropout here: the mode must make no difference
                calls.append(
                    {
                        "same tensor": it.given.weight is weight,
                        "frozen": not it.given.weight.requires_grad,
                        "trained": trained(it.layer),
                        "output": flat(it.layer(it.x)),
                        "weight": flat(it.given.weight),
                        "A": flat(A),
                        "B": flat(B),
                    }
                )
        return {"trained": seen, "inputs": inputs, "output before": before, "calls": calls}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = wrong_adapter(seen["trained"], 3)
        if wrong:
            return wrong
        inputs = expected["inputs"]
        weight, bias, A, B, x = tensors_of(inputs)
        merged = weight + SCALE * B @ A
        output = flat(F.linear(x, merged, bias))
        wrong = wrong_numbers("Before merging the output", seen["output before"], output)
        if wrong:
            return wrong
        for call, after in zip(CALLS, seen["calls"], strict=True):
            when = call.capitalize()
            if not after["same tensor"]:
                return f"{when}, another tensor stands in the linear layer's weight: add to the weight in place."
            if not after["frozen"]:
                return f"{when}, the linear layer's weight is trained."
            right = inputs["weight"] if call.startswith("unmerged") else flat(merged)
            wrong = wrong_numbers(f"{when}, the output", after["output"], output) or wrong_numbers(
                f"{when}, the weight of the linear layer", after["weight"], right
            )
            if wrong:
                return wrong
            if not relative_distance(after["A"] + after["B"], inputs["A"] + inputs["B"]) <= EXACT:
                return f"{when}, A or B is not what it was before."
            if call.startswith("unmerged") and not is_adapter(after["trained"], 3):
                return f"{when}, training cannot go on: {wrong_adapter(after['trained'], 3)}"
        return None
