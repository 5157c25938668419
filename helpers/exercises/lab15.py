"""Practice check of lab 15: one update of the whole batch, with no room for its activations nor for its gradients.

More than the lab's folding is asked for: rows that do not count, a decay that belongs to the update and not to its
pieces, and a layer that is frozen.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..device import pick_device
from ..memory import MemoryMeter
from ..units import KiB, human_bytes
from .base import Check, Evidence, Part

WIDTH, LAYERS, ROWS, CLASSES = 64, 8, 130, 10  # 130: no power of two divides it twice
ROOM = 100 * KiB  # beside weights, running means and the batch; all gradients together are larger
STEPS, RATE, DECAY = 2, 1e-3, 0.1
IGNORED = -100  # the label of rows that do not count


def _model() -> nn.Sequential:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).to(pick_device())
    model[0].requires_grad_(False)
    return model


def _labels(generator: torch.Generator) -> torch.Tensor:
    """Return classes, with two fifths of the rows left out: 33 in one stretch, the others here and there."""
    y = torch.randint(CLASSES, (ROWS,), generator=generator)
    y[torch.rand(ROWS, generator=generator) < 0.2] = IGNORED
    start = int(torch.randint(ROWS - 34, (1,), generator=generator))
    y[start : start + 33] = IGNORED
    return y


class SameUpdateWithinTheRoom(Check):
    """Two updates are those of the whole batch, and the peak stays within the room."""

    hint = (
        "A hook on each parameter (register_post_accumulate_grad_hook) sees a gradient the moment it exists: add it to "
        "the mean and free it. Fade and decay once an update, before the first piece; divide by the rows that count in "
        "the whole batch; frozen parameters admit no hook; take hooks off again."
    )

    @staticmethod
    def probe(seed: int, lean_update: Callable[..., Any]) -> Evidence:
        torch.manual_seed(seed)
        model, here = _model(), pick_device()
        trained = [p for p in model.parameters() if p.requires_grad]
        frozen = [p.detach().clone() for p in model.parameters() if not p.requires_grad]
        means = {p: torch.zeros_like(p) for p in trained}
        own = {p: mean.data_ptr() for p, mean in means.items()}
        draws = torch.Generator().manual_seed(seed)
        sides = []
        for step in range(STEPS):
            x, y = torch.randn(ROWS, WIDTH, generator=draws).to(here), _labels(draws).to(here)
            meter = MemoryMeter(model)
            with meter if step else contextlib.nullcontext():  # the first may warm something up
                lean_update(model, means, x, y, RATE)
            peak = meter.peak_bytes
            sides.append([float(means[p].double().norm()) for p in trained])
        # What is left over shows in an ordinary backward pass: no gradient there, or a mean that moves.
        left = {
            "gradients": sum(p.grad is not None for p in model.parameters()),
            "replaced": sum(means[p].data_ptr() != own[p] for p in trained),
            "thawed": any(
                p.requires_grad or not torch.equal(p, was) for p, was in zip(model[0].parameters(), frozen, strict=True)
            ),
        }
        before = [mean.clone() for mean in means.values()]
        F.cross_entropy(model(x[:4]), y[:4].clamp(min=0)).backward()
        left["hooks"] = sum(not torch.equal(a, b) for a, b in zip(before, means.values(), strict=True))
        generator = torch.Generator().manual_seed(seed)
        probes = [torch.randn(p.shape, generator=generator).double() for p in trained]
        pairs = list(zip(trained, probes, strict=True))
        return {
            "norms": sides,
            "means": [float((means[p].cpu().double() * probe).sum()) for p, probe in pairs],
            "weights": [float((p.detach().cpu().double() * probe).sum()) for p, probe in pairs],
            "sizes": [p.numel() for p, _ in pairs],
            "left": left,
            "static": sum(p.nbytes for p in [*model.parameters(), *means.values()]) + x.nbytes + y.nbytes,
            "peak": peak,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["left"]["thawed"]:
            return "The first layer is frozen: its parameters must stay as they are, and stay frozen."
        if any(norm != norm for got in seen["norms"] for norm in got):
            return "The running means hold NaN: the mean over a piece without a row that counts is 0 / 0."
        for step, (got, want) in enumerate(zip(seen["norms"], expected["norms"], strict=True)):
            ratio = (sum(g * g for g in got) / sum(w * w for w in want)) ** 0.5
            if not abs(ratio - 1) <= 2e-3:
                return (
                    f"After update {step + 1} the running means are {ratio:.3f} times as long as they should be. Fade "
                    "and decay once an update; take (1 - 0.9) of the gradient of the mean loss over the rows that "
                    "count in the whole batch; no hook twice."
                )
        off = [abs(a - b) for a, b in zip(seen["means"], expected["means"], strict=True)]
        lengths = expected["norms"][-1]
        if not all(d <= 0.02 * length for d, length in zip(off, lengths, strict=True)):
            return (
                "The running means have about the right length and point elsewhere: does every row that counts weigh "
                "the same? Is 0.1 * p in it, once, of the weights before the update?"
            )
        # A sign may differ where a mean is almost zero: a few weights of thousands, 2 x RATE each and step.
        for a, b, size in zip(seen["weights"], expected["weights"], expected["sizes"], strict=True):
            if not abs(a - b) <= RATE * max(4.0, 0.5 * size**0.5):
                return "The weights moved otherwise: p - lr * sign(mean), once an update, after the last piece."
        left = seen["left"]
        if left["replaced"]:
            return "The running means must be updated in place: the dictionary holds other tensors now."
        if left["hooks"]:
            return "A backward pass after the update still moves the running means: take the hooks off."
        if left["gradients"]:
            return f"{left['gradients']} parameters still hold a gradient after the update."
        over = seen["peak"] - seen["static"]
        if not over <= ROOM:
            return (
                f"Beside weights, means and batch the peak takes {human_bytes(over)}; there is room for "
                f"{human_bytes(ROOM)}. Who holds it: gradients, or the activations of too many rows at once?"
            )
        return None


PARTS = (Part("lab15.lean", ("lean_update",), (SameUpdateWithinTheRoom,)),)
