"""Check of part 1: what the layer adds to the base's output, and its gradients."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.plain import plain
from .around import (
    EXACT,
    INPUTS,
    Around,
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


class Case(NamedTuple):
    """A layer, and the mode in which it runs."""

    rank: int
    alpha: float
    bias: bool
    dropout: float
    training: bool

    def __str__(self) -> str:
        bias, mode = "" if self.bias else "no bias, ", "training" if self.training else "evaluation"
        return f"rank {self.rank}, alpha {self.alpha:g}, dropout {self.dropout:g}, {bias}{mode} mode"


CASES = (
    Case(2, 6.0, True, 0.5, False),
    Case(16, 6.0, True, 0.5, False),
    Case(4, 1.0, False, 0.5, False),
    Case(4, 6.0, True, 0.0, True),
)
# The correction of dropout's layer has 16 outputs and rank 12, so that it says which of the 12 inputs were dropped.
RANK, OUTPUTS, SCALE, DROPOUT = 13, 16, 6.0 / 13, 0.25
CALLS, SHAPE = 40, (2, 3, INPUTS)
SLACK = 0.05  # of a share of 2,880 draws: six standard deviations
TOGETHER = (
    "In training mode, each call drops the same elements. Draw a new mask in each call.",
    "Rows at the same place in two sequences drop the same elements. Each row needs its own mask.",
    "Neighboring rows drop the same elements. Each row needs its own mask.",
    "Dropout drops entire rows of the input. Each element needs its own draw.",
)  # by axis: the call, then the three of x


def _gradient(p: Tensor) -> list[float]:
    return flat(torch.zeros_like(p) if p.grad is None else p.grad)


def _wrong_scale(case: Case, output: list[float], inputs: Evidence) -> str | None:
    """Say by what the correction is multiplied, where that alone is wrong."""
    weight, bias, A, B, x = (tensor.detach() for tensor in tensors_of(inputs))
    correction, base = flat((x @ A.T) @ B.T), F.linear(x, weight, bias)
    if len(output) != base.numel():
        return None
    seen = torch.tensor(output, dtype=torch.float64) - base.flatten()
    factor, right = (seen.norm() / torch.tensor(correction).norm()).item(), case.alpha / case.rank
    if abs(factor / right - 1) <= EXACT or relative_distance(flat(seen), [factor * c for c in correction]) > EXACT:
        return None
    return f"the correction is multiplied by {factor:.4g}; alpha / rank is {right:.4g}."


class CorrectsByAlphaOverRank(Check):
    """The output is x Wᵀ + bias + (alpha / rank) (x Aᵀ) Bᵀ, with correct gradients; dropout only while training."""

    points = 1
    hint = (
        "Compute the correction by hand for alpha 6 with ranks 2 and 16. nn.Dropout follows the layer's mode. "
        "F.dropout does not, unless you pass the mode: F.dropout(x, p, self.training)."
    )

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        # All layers are there before the first one runs: none may have taken its numbers from another.
        layers = [around(lora_linear, seed, (case.rank, case.alpha, case.dropout), case.bias) for case in CASES]
        dropping = around(lora_linear, seed, (RANK, SCALE * RANK, DROPOUT), outputs=OUTPUTS)
        around(lora_linear, seed, (1, 1.0, 0.9))
        for case, it in zip(CASES, layers, strict=True):
            if not is_adapter(trained(it.layer), case.rank):
                return {"trained": trained(it.layer), "rank": case.rank}
        cases = [CorrectsByAlphaOverRank._one(seed, case, it) for case, it in zip(CASES, layers, strict=True)]
        half = lora_linear(nn.Linear(INPUTS, 1, dtype=torch.bfloat16), 2, 6.0, 0.0).eval()
        dtype = str(half(torch.ones(3, INPUTS, dtype=torch.bfloat16)).dtype).removeprefix("torch.")
        return {"cases": cases, "16 bits": dtype, "dropout": CorrectsByAlphaOverRank._dropout(seed, dropping)}

    @staticmethod
    @torch.no_grad()
    def _in_other_shapes(it: Around) -> Evidence:
        """Return the output for x in shapes that `nn.Linear` takes, or the error at the first that is not taken."""
        forms = {"vector": it.x[0, 0].clone(), "matrix": it.x[0].clone(), "four dimensions": it.x.unsqueeze(1).clone()}
        outputs = {}
        for name, x in forms.items():
            try:
                outputs[name] = it.layer(x)
            except Exception as error:
                text = " ".join(str(error).split())[:200]
                return {"refused": {"shape": list(x.shape), "error": type(error).__name__, "text": text}}
        return {
            "shapes": [list(y.shape) for y in outputs.values()],
            **{f"output for a {name}": flat(outputs[name]) for name in ("vector", "matrix")},
            "output for four dimensions": flat(outputs["four dimensions"]),
        }

    @staticmethod
    def _one(seed: int, case: Case, it: Around) -> Evidence:
        A, B = fill(it.layer, seed)
        inputs = inputs_of(it.linear, A, B, it.x)
        it.layer.train(case.training)
        restless = not torch.equal(plain(it.layer(it.x.clone())), it.layer(it.x.clone()))
        x = it.x.clone().requires_grad_()
        y = it.layer(x)
        if y.requires_grad:
            y.square().sum().backward()
        with torch.no_grad():
            across = it.layer(it.x.transpose(0, 1))
        others = CorrectsByAlphaOverRank._in_other_shapes(it)
        return {
            "inputs": inputs,
            "restless": restless,
            "dtype": str(y.dtype).removeprefix("torch."),
            "refused": others.pop("refused", None),
            "shapes": [list(y.shape), list(across.shape), *others.pop("shapes", [])],
            "output": flat(y),
            "gradient of A": _gradient(A),
            "gradient of B": _gradient(B),
            "gradient of x": _gradient(x),
            "output for a view that is not contiguous": flat(across.transpose(0, 1)) if across.dim() == 3 else [],
            **others,
        }

    @staticmethod
    def _dropout(seed: int, it: Around) -> Evidence:
        """Take the correction of the same inputs, none of them zero, in training mode, many times."""
        A, B = fill(it.layer, seed)
        it.layer.train()
        x = 1 + torch.rand(SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        inputs = inputs_of(it.linear, A, B, x)
        with torch.no_grad():
            base = it.linear(x)
            corrections = [flat(it.layer(x.clone()).reshape(base.shape) - base) for _ in range(CALLS)]
        return {"inputs": inputs, "corrections": corrections}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "trained" in seen:
            return wrong_adapter(seen["trained"], seen["rank"])
        for case, got, want in zip(CASES, seen["cases"], expected["cases"], strict=True):
            if got["restless"]:
                return f"{case}: two calls with the same input give different outputs, so dropout is active."
            if got["refused"]:
                shape, error, text = (got["refused"][key] for key in ("shape", "error", "text"))
                return (
                    f"{case}: as in nn.Linear, x may have any shape (..., in), and x of shape {tuple(shape)} raised "
                    f"{error}: {text}"
                )
            for what in ("shapes", "dtype"):
                if got[what] != want[what]:
                    return (
                        f"{case}: for inputs (2, 5, 12), (5, 2, 12), (12,), (5, 12) and (2, 1, 5, 12) in float64, the "
                        f"output has the {what} {got[what]}; expected {want[what]}."
                    )
            for name, right in CorrectsByAlphaOverRank._right(want["inputs"], case.alpha / case.rank).items():
                wrong = wrong_numbers(f"the {name}", got[name], right)
                if wrong:
                    return f"{case}: {_wrong_scale(case, got['output'], want['inputs']) or wrong}"
        if seen["16 bits"] != "bfloat16":
            return (
                f"Around a layer in bfloat16, for bfloat16 inputs, the output is {seen['16 bits']}; it should be "
                "bfloat16."
            )
        return CorrectsByAlphaOverRank._wrong_dropout(seen["dropout"], expected["dropout"])

    @staticmethod
    def _right(inputs: Evidence, scale: float) -> dict[str, list[float]]:
        """Return the output by the formula, and the gradients of the sum of its squares."""
        weight, bias, A, B, x = tensors_of(inputs)
        y = F.linear(x, weight, bias) + scale * (x @ A.T) @ B.T
        gradients = torch.autograd.grad(y.square().sum(), (A, B, x))
        names = ("output", "gradient of A", "gradient of B", "gradient of x")
        right = {name: flat(tensor) for name, tensor in zip(names, (y, *gradients), strict=True)}
        forms = {"a view that is not contiguous": y, "a vector": y[0], "a matrix": y[:5], "four dimensions": y}
        return right | {f"output for {name}": flat(rows) for name, rows in forms.items()}

    @staticmethod
    def _wrong_dropout(seen: Evidence, expected: Evidence) -> str | None:
        _, _, A, B, x = (tensor.detach() for tensor in tensors_of(expected["inputs"]))
        correct = SCALE * (B @ A).T  # (12, 16), of full rank
        corrections = torch.tensor(seen["corrections"], dtype=torch.float64).view(CALLS, *SHAPE[:-1], OUTPUTS)
        x = x.view(SHAPE)
        dropped = (corrections @ torch.linalg.pinv(correct) / x) < 0.5 / (1 - DROPOUT)  # (40, 2, 3, 12)
        by_draws = (x * ~dropped / (1 - DROPOUT)) @ correct
        if not relative_distance(flat(corrections), flat(by_draws)) <= EXACT:
            return (
                "In training mode, an element of the input is neither dropped nor multiplied by 1 / (1 - p). "
                "Apply dropout to the input, before A."
            )
        draws = dropped.double()
        if not abs(draws.mean() - DROPOUT) <= SLACK:
            return f"With dropout {DROPOUT}, {draws.mean():.0%} of the inputs were dropped in training mode."
        for axis, sentence in enumerate(TOGETHER):
            if not (draws * draws.roll(1, axis)).mean() <= DROPOUT**2 + SLACK:
                return sentence
        return None
