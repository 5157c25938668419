"""Check of part 1: what the layer is before training."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..base import Check, Evidence
from ..probing.distance import relative_distance
from ..probing.plain import plain
from .around import EXACT, INPUTS, OUTPUTS, around, flat, is_adapter, thin, trained, wrong_adapter

CASES = {"with a bias": True, "without a bias": False}
SIZES = (3, 6.0, 0.5)  # rank, alpha, dropout


@contextlib.contextmanager
def _nan_where_nothing_is_written() -> Iterator[None]:
    """Have `torch.empty` give NaN, not what happens to be in memory, which is often zero."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


class StartsAsTheBase(Check):
    """At first the layer gives the base's output exactly; only A and B are trained, and training can begin."""

    points = 1
    hint = (
        "Print name, shape, dtype, device and requires_grad of each parameter. One of the two thin matrices starts at "
        "zero, and the other one must not. Which of them multiplies the input first?"
    )

    @staticmethod
    def probe(seed: int, lora_linear: type[nn.Module]) -> Evidence:
        cases = {name: StartsAsTheBase._one(seed, lora_linear, bias) for name, bias in CASES.items()}
        elsewhere = lora_linear(nn.Linear(INPUTS, OUTPUTS, device="meta", dtype=torch.bfloat16), *SIZES)
        thin_ones = [p for p in elsewhere.parameters() if p.requires_grad]
        return {
            "cases": cases,
            "devices": sorted({str(p.device) for p in thin_ones}),
            "16 bits": sorted({str(p.dtype).removeprefix("torch.") for p in thin_ones}),
        }

    @staticmethod
    def _one(seed: int, lora_linear: type[nn.Module], bias: bool) -> Evidence:
        with _nan_where_nothing_is_written():
            it = around(lora_linear, seed, SIZES, bias)
            second = lora_linear(nn.Linear(INPUTS, OUTPUTS, bias=bias).double(), *SIZES)
        seen: dict[str, Any] = {
            "trained": trained(it.layer),
            "given": [name for name, p in it.given.named_parameters() if p.requires_grad],
        }
        if not is_adapter(seen["trained"], SIZES[0]):
            return seen
        it.layer.train()
        x = it.x.clone()
        output = plain(it.layer(x))
        A, B = thin(it.layer)
        if output.requires_grad:
            output.square().sum().backward()
        with torch.no_grad():
            calm = plain(it.layer.eval()(it.x.clone()))  # without dropout
        others = [p for p in it.layer.parameters() if p is not A and p is not B]
        return seen | {
            "x": torch.equal(x, it.x),
            "same": torch.equal(output, it.linear(it.x)),
            "output": flat(output),
            "calm": calm.shape == output.shape and relative_distance(flat(calm), flat(it.linear(it.x))) <= EXACT,
            "unset": [name for name, p in (("A", A), ("B", B)) if p.isnan().any()],
            "rank of A": 0 if A.isnan().any() else int(torch.linalg.matrix_rank(A.detach())),
            "alike": torch.equal(A, thin(second)[0]),
            "B": B.detach().abs().max().item(),
            "gradient of B": 0.0 if B.grad is None else B.grad.norm().item(),
            "base has gradients": any(p.grad is not None for p in others),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["cases"].items():
            wrong = StartsAsTheBase._wrong(seen["cases"][case], want)
            if wrong:
                return f"Around a layer {case}: {wrong}"
        if seen["devices"] != ["meta"]:
            devices = ", ".join(seen["devices"])
            return f"Around a layer on the meta device, A and B are on {devices}. Give them the device of the weight."
        if seen["16 bits"] != ["bfloat16"]:
            dtypes = ", ".join(seen["16 bits"])
            return f"Around a layer in bfloat16, A and B are in {dtypes}. Give them the dtype of the weight."
        return None

    @staticmethod
    def _wrong(seen: Evidence, expected: Evidence) -> str | None:
        wrong = wrong_adapter(seen["trained"], SIZES[0])
        if wrong:
            return wrong
        if seen["given"]:
            return (
                f"the {' and '.join(seen['given'])} of the given linear layer can still be trained. Freeze this layer "
                "itself, not a copy of it."
            )
        if seen["unset"]:
            return f"{' and '.join(seen['unset'])} is never initialized; torch.empty only reserves memory."
        if seen["B"] != 0:
            return "B (out, r) does not start at zero: before its first step the layer already changes the output."
        if not seen["x"]:
            return "the forward pass changes its input x. Does dropout work in place?"
        if not seen["same"] or not relative_distance(seen["output"], expected["output"]) <= EXACT:
            if not seen["calm"]:
                return "before training, the output differs from the base's in evaluation mode, too. Is the bias added?"
            return (
                "before training, in training mode, the output differs from the base's. Does dropout change the "
                "base's input?"
            )
        if seen["rank of A"] == 0:
            return "A and B are both zero. The gradient of each is a multiple of the other, so neither will ever move."
        if seen["rank of A"] < SIZES[0]:
            return f"A starts with rank {seen['rank of A']} instead of {SIZES[0]}. Are its rows the same?"
        if seen["alike"]:
            return "a second layer starts with the same A. Draw A at random, from PyTorch's own generator."
        if not seen["gradient of B"] > 0:
            return "B gets no gradient. Is it cut off from the output by detach() or no_grad()?"
        if seen["base has gradients"]:
            return "the base's weights got gradients: they are not frozen."
        return None
