"""Practice checks of lab 01: bytes that stay through a step, and the peak of a GPT."""

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..device import pick_device
from ..memory import MemoryMeter
from ..models import SmallCNN, SmallGPT
from .base import Check, Evidence, Part

SCHEMES = ("fp32", "autocast", "classic", "bf16")
TOLERANCE = 0.10


def gpt_step(model: SmallGPT, optimizer: torch.optim.Optimizer, ids: Tensor) -> None:
    """Train one step on token ids (B, T + 1), as lab 01 does. `logits` lives to the end of the step."""
    optimizer.zero_grad()
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()


def measured_peak(vocabulary: int, context: int, layers: int, width: int, batch: int) -> int:
    """Measure the second step of a `SmallGPT` of these sizes with AdamW in FP32; returns bytes."""
    device = pick_device()
    model = SmallGPT(vocabulary, context, layers, width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    ids = torch.randint(vocabulary, (batch, context + 1), device=device)
    gpt_step(model, optimizer, ids)
    with MemoryMeter(model, optimizer) as meter:
        gpt_step(model, optimizer, ids)
    return meter.peak_bytes


class CountsWhatStays(Check):
    """Weights, gradients and Adam's state of a model, under four schemes, frozen parameters included."""

    hint = (
        "Count trained and frozen parameters apart: a frozen one has no gradient, no moments and needs no master copy. "
        "model.parameters() gives a shared parameter once."
    )

    @staticmethod
    def probe(seed: int, resident_bytes: Callable[[nn.Module, str], int]) -> Evidence:
        rng = random.Random(seed)
        frozen = SmallGPT(layers=2, width=8 * rng.randint(4, 12))
        frozen.blocks[0].requires_grad_(False)
        models = {
            "a linear layer": nn.Linear(10 * rng.randint(3, 9), 50),
            "a GPT with tied weights": SmallGPT(layers=rng.randint(1, 3), width=64),
            "a GPT with one frozen block": frozen,
            "a CNN whose features are frozen": SmallCNN(8),
        }
        models["a CNN whose features are frozen"].features.requires_grad_(False)
        return {
            f"{name}, {scheme}": float(resident_bytes(model, scheme))
            for name, model in models.items()
            for scheme in SCHEMES
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            if abs(seen[name] - want) > 0.5:
                return f"For {name}: you count {seen[name]:,.0f} bytes; it is {want:,.0f} ({seen[name] / want:.3g} x)."
        return None


class PredictsThePeak(Check):
    """The peak of a training step within 10 % of the measurement, for GPTs of many shapes."""

    hint = (
        "Two moments can be the peak: the beginning of the backward pass, with all activations and the copies of the "
        "logits, and the optimizer step, with all gradients. Write down who is there at each, and take the larger."
    )
    # Each tells other terms apart: (what it stresses, sizes).
    shapes = (
        ("a long batch", {"vocabulary": 256, "context": 128, "layers": 4, "width": 128, "batch": 16}),
        ("a large vocabulary", {"vocabulary": 4000, "context": 64, "layers": 1, "width": 64, "batch": 16}),
        ("a wide model, batch 1", {"vocabulary": 256, "context": 64, "layers": 3, "width": 256, "batch": 1}),
        ("a deep and narrow model", {"vocabulary": 256, "context": 128, "layers": 8, "width": 64, "batch": 8}),
        ("a large embedding, batch 2", {"vocabulary": 8000, "context": 64, "layers": 2, "width": 128, "batch": 2}),
    )

    @classmethod
    def configurations(cls, seed: int) -> dict[str, dict[str, int]]:
        """Return the shapes to try: those above, each with a batch and a context of its own for every seed."""
        rng = random.Random(seed)
        return {
            name: sizes | {"batch": sizes["batch"] + rng.randint(0, sizes["batch"] // 2)} for name, sizes in cls.shapes
        }

    @staticmethod
    def probe(seed: int, gpt_peak: Callable[..., float]) -> Evidence:
        tried = PredictsThePeak.configurations(seed)
        return {
            "predicted": {name: float(gpt_peak(**sizes)) for name, sizes in tried.items()},
            "measured": {name: measured_peak(**sizes) for name, sizes in tried.items()},
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        wrong = {}
        for name, want in expected["measured"].items():
            ratio = seen["predicted"][name] / want
            if not abs(ratio - 1) <= TOLERANCE:
                wrong[name] = ratio
        if not wrong:
            return None
        listed = "; ".join(f"{name}: {ratio:.2f} x the measurement" for name, ratio in wrong.items())
        return f"Off by more than 10 % for {listed}. {_advice(wrong)}"


def _advice(wrong: dict[str, float]) -> str:
    """Say which term the pattern of errors points at."""
    if len(wrong) == len(PredictsThePeak.shapes):
        return "All shapes are off: look at the bytes a parameter (weights, gradients, two moments)."
    if set(wrong) <= {"a large vocabulary", "a large embedding, batch 2"}:
        return "Only large vocabularies are off: how many tensors of the size of the logits are alive at once?"
    if "a long batch" in wrong or "a deep and narrow model" in wrong:
        return "Shapes with many tokens are off: look at the activations a token and layer."
    return "Shapes with few tokens are off: the peak is then in the optimizer step, which holds all gradients."


PARTS: tuple[Part, ...] = (
    Part("lab01.stays", ("resident_bytes",), (CountsWhatStays,)),
    Part("lab01.peak", ("gpt_peak",), (PredictsThePeak,)),
)
