"""Practice checks of where memory goes: resident bytes of a model, and the peak of a GPT."""

import functools
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.device import pick_device
from ..core.models import SmallCNN, SmallGPT
from ..meter.operations_seen import each_operation
from ..meter.recorder import MemoryMeter
from .base import Check, Evidence, Part

SCHEMES = ("fp32", "autocast", "classic", "bf16")
TOLERANCE = 0.04  # the smallest term that the lab lists is more than this of the peak of one of the shapes
GPU_TOLERANCE = 0.10  # its allocator hands out blocks that may be up to 1 MiB larger than the tensors in them


def gpt_step(model: SmallGPT, optimizer: torch.optim.Optimizer, ids: Tensor) -> None:
    """Train one step on token ids (B, T + 1), as the lab does. `logits` lives to the end of the step."""
    optimizer.zero_grad()
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()


@functools.cache  # the probe of the answer and that of the reference ask for the same sizes
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


def _state(model: nn.Module) -> list[tuple[torch.dtype, bool]]:
    """Return what a count of bytes must leave as it is."""
    return [(p.dtype, p.requires_grad) for p in model.parameters()]


class CountsWhatStays(Check):
    """Weights, gradients and Adam's state of a model, under four schemes, frozen parameters included."""

    hint = (
        "Multiply each parameter's numel() by the scheme's bytes per element. A trained parameter takes more of them."
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
            "a linear layer stored in BF16": nn.Linear(40, 10 * rng.randint(3, 9)).bfloat16(),
        }
        models["a CNN whose features are frozen"].features.requires_grad_(False)
        seen: Evidence = {"bytes": {}, "changed": []}
        for name, model in models.items():
            before = _state(model)
            for scheme in SCHEMES:
                seen["bytes"][f"{name}, {scheme}"] = float(resident_bytes(model, scheme))
                if _state(model) != before:
                    seen["changed"].append(scheme)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["changed"]:
            return (
                f"With {seen['changed'][0]!r} your function changed the model: its dtype or `requires_grad`. "
                "Count without changing it."
            )
        for name, want in expected["bytes"].items():
            mine = seen["bytes"][name]
            if not abs(mine - want) <= 0.5:
                first = f"For {name}: you return {mine:,.0f} bytes, {mine / want:.3g} times the expected {want:,.0f}."
                return f"{first} {_where_to_look(name)}"
        return None


def _where_to_look(case: str) -> str:
    """Say what is special about the model of a case; cases are tried from the plainest on."""
    model, _, scheme = case.rpartition(", ")
    if model == "a linear layer":
        return (
            f'Nothing is frozen or shared here. Check the entry for "{scheme}", and count bytes rather than elements.'
        )
    if "stored in BF16" in model:
        return (
            "Its current dtype does not matter: the scheme determines the bytes per element. Use numel(), not nbytes."
        )
    if "tied" in model:
        return "Its output layer shares the embedding's weight, and model.parameters() yields that weight once."
    return "A frozen parameter has no gradient and no moments and needs no master copy; buffers do not count."


class PredictsThePeak(Check):
    """The peak of a training step within 4% of the measurement (10% on a GPU), for GPTs of many shapes."""

    hint = "List the tensors in memory at each of the two moments; then compare your sum with the GPT of section 2."
    # Each tells other terms apart: (what it stresses, sizes).
    shapes = (
        ("a large batch", {"vocabulary": 256, "context": 128, "layers": 4, "width": 128, "batch": 16}),
        ("a large vocabulary", {"vocabulary": 4000, "context": 64, "layers": 1, "width": 64, "batch": 16}),
        ("a wide model, batch 1", {"vocabulary": 256, "context": 64, "layers": 3, "width": 256, "batch": 1}),
        ("a deep and narrow model", {"vocabulary": 256, "context": 128, "layers": 8, "width": 64, "batch": 8}),
        ("a large embedding, batch 2", {"vocabulary": 8000, "context": 64, "layers": 2, "width": 128, "batch": 2}),
        ("a single layer", {"vocabulary": 448, "context": 128, "layers": 1, "width": 128, "batch": 16}),
        ("logits in the optimizer step", {"vocabulary": 2000, "context": 64, "layers": 2, "width": 96, "batch": 1}),
    )

    @classmethod
    def configurations(cls, seed: int) -> dict[str, dict[str, int]]:
        """Return the shapes to try: those above, each with a batch of its own for every seed."""
        rng = random.Random(seed)
        return {
            name: sizes | {"batch": sizes["batch"] + rng.randint(0, sizes["batch"] // 2)} for name, sizes in cls.shapes
        }

    @staticmethod
    def probe(seed: int, gpt_peak: Callable[..., float]) -> Evidence:
        tried = PredictsThePeak.configurations(seed)
        predicted: dict[str, float] = {}
        operations: list[str] = []

        def predict() -> None:
            predicted.update({name: float(gpt_peak(**sizes)) for name, sizes in tried.items()})

        def note(func: Any, *_: Any) -> None:
            operations.append(func.name())

        each_operation(predict, note)
        measured = {name: measured_peak(**sizes) for name, sizes in tried.items()}
        tolerance = GPU_TOLERANCE if pick_device().type == "cuda" else TOLERANCE
        return {
            "predicted": predicted,
            "measured": measured,
            "operations": len(operations),
            "tolerance": tolerance,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["operations"]:
            return (
                f"`gpt_peak` runs {seen['operations']:,} operations on tensors. Build no model and measure nothing: "
                "compute the peak from the five integers with plain Python numbers."
            )
        wrong, tolerance = {}, expected["tolerance"]
        for name, want in expected["measured"].items():
            ratio = seen["predicted"][name] / want
            if not abs(ratio - 1) <= tolerance:
                wrong[name] = ratio
        if not wrong:
            return None
        listed = "; ".join(f"{name}: {ratio:.2f} times the measurement" for name, ratio in wrong.items())
        return f"Off by more than {tolerance:.0%} for {listed}. {_advice(wrong)}"


def _advice(wrong: dict[str, float]) -> str:
    """Say which term the pattern of errors points at."""
    ratios = wrong.values()
    if len(wrong) == len(PredictsThePeak.shapes) and max(ratios) < 1.1 * min(ratios):
        if 0.2 < min(ratios) < 0.3:
            return "All are too small by a factor of 4. Do you count elements instead of bytes?"
        return "All are off by the same factor. Which unit do you return? It should be bytes."
    if len(wrong) == len(PredictsThePeak.shapes):
        return (
            "All shapes are off. Check the bytes per parameter, which differ between the two moments. The peak is the "
            "larger moment, not the sum of both."
        )
    if "a large vocabulary" in wrong and not wrong.keys() & {"a large batch", "a deep and narrow model"}:
        return "The shape with the most logits is off. How many tensors of that size are alive at once?"
    if "a large batch" in wrong or "a deep and narrow model" in wrong:
        return "Shapes with many tokens are off. Check the activations per token and layer, and the logits."
    if set(wrong) == {"logits in the optimizer step"}:
        return (
            "That model's peak is in the optimizer step. When `train_step` gets there, its variable `logits` still "
            "refers to a tensor of tokens x vocabulary."
        )
    if set(wrong) == {"a single layer"}:
        return (
            "The fewer the layers, the more the tensors outside the blocks count: the first norm saves its input, and "
            "the head saves the last norm's output."
        )
    if "a wide model, batch 1" in wrong:
        return (
            "The shape with few tokens is off. Its peak is in the optimizer step, when all gradients are in memory, "
            "and so is what AdamW's foreach implementation allocates for all parameters at once."
        )
    return (
        "The large embedding is off. Count its parameters once. At the start of the backward pass, count parameters "
        "and moments, but not gradients, which come later."
    )


PARTS: tuple[Part, ...] = (
    Part("where_memory_goes.stays", ("resident_bytes",), (CountsWhatStays,)),
    Part("where_memory_goes.peak", ("gpt_peak",), (PredictsThePeak,)),
)
