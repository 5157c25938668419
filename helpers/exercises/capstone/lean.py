"""One update of the whole batch, with no room for its activations or its gradients.

More than the lab's folding is asked for: rows that do not count, a decay that belongs to the update and not to its
micro-batches, and a layer that is frozen.
"""

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...core.device import pick_device
from ...core.units import KiB, human_bytes
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence

WIDTH, LAYERS, ROWS, CLASSES = 64, 8, 130, 10  # 130: no power of two divides it twice
ROOM = 100 * KiB  # beside weights, running means and the batch; all gradients together are larger
RATE, DECAY = 1e-3, 0.01
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


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().cpu().double().flatten() for t in tensors])


def _parts(mean: torch.Tensor, before: list[torch.Tensor]) -> dict[str, float]:
    """Return how much of the old mean, the gradient and the weights is in `mean`, and which share of it is neither."""
    if not torch.isfinite(mean).all():
        return dict.fromkeys(("fade", "gradient", "decay", "rest"), math.nan)
    basis = torch.stack(before, dim=1)
    scale = basis.norm(dim=0)
    solution = torch.linalg.lstsq(basis / scale, mean.unsqueeze(1)).solution
    rest = (mean - (basis / scale @ solution).squeeze(1)).norm() / mean.norm()
    fade, gradient, decay = (solution.squeeze(1) / scale).tolist()
    return {"fade": fade, "gradient": gradient, "decay": decay, "rest": float(rest)}


def _off(got: dict[str, float], want: dict[str, float]) -> str | None:
    """Say what is wrong with a running mean made of these parts ("share": that of rows that count)."""
    if got["fade"] != got["fade"]:
        return "the running means hold NaN. The loss of a piece without a row that counts is 0 / 0 if it is a mean."
    if not abs(got["fade"] - want["fade"]) <= 3e-3:
        return (
            f"{got['fade']:.3f} of the old mean is left, it should be {want['fade']:.3f}. The mean fades once an "
            "update, before the first piece."
        )
    decay = got["decay"] / want["decay"]
    if not abs(decay - 1) <= 0.1:
        return (
            f"the decay is in the mean {abs(decay):.2f} times as much as it should be: (1 - 0.9) of {DECAY} * p, once "
            "an update, of the weights before it."
        )
    if not got["rest"] <= max(5e-3, 3 * want["rest"]):
        return (
            f"{got['rest']:.1%} of the mean's length is neither the old mean nor the gradient of the whole batch nor "
            "the weights. Does every row that counts weigh the same, in whichever piece it stands? Is a gradient gone "
            "before the next piece comes? Did the weights move before the last one?"
        )
    gradient = got["gradient"] / want["gradient"]
    if not abs(gradient - 1) <= 5e-3:
        if abs(gradient / want["share"] - 1) <= 5e-3:
            return "the gradient was divided by all rows, also by those that do not count."
        return (
            f"the gradient is in the mean {gradient:.2f} times as much as it should be: (1 - 0.9) of it, divided by "
            "the rows that count in the whole batch; no hook twice."
        )
    return None


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
        model, device = _model(), pick_device()
        trained = [p for p in model.parameters() if p.requires_grad]
        frozen = [p.detach().clone() for p in model.parameters() if not p.requires_grad]
        means = {p: torch.randn_like(p) * 5e-4 for p in trained}  # as if there had been updates
        own = {p: mean.data_ptr() for p, mean in means.items()}
        draws = torch.Generator().manual_seed(seed)
        parts = []
        for update in (1, 2):
            x, y = torch.randn(ROWS, WIDTH, generator=draws).to(device), _labels(draws).to(device)
            gradient = torch.autograd.grad(F.cross_entropy(model(x), y), trained)
            before = [_flat(means[p] for p in trained), _flat(gradient), _flat(trained)]
            del gradient
            meter = MemoryMeter(model)
            with meter if update == 2 else contextlib.nullcontext():  # the first may warm something up
                with torch.no_grad():  # the meter counts what was touched: so touch all that is there from the start
                    for tensor in (*means.values(), x, y):
                        tensor.add_(0)
                try:
                    lean_update(model, means, x, y, RATE)
                except Exception as error:
                    if update == 1:
                        raise
                    return {"second": {"error": type(error).__name__, "text": str(error)[:200]}}
            peak = meter.profile.peak_bytes
            share = float((y != IGNORED).double().mean())
            parts.append(_parts(_flat(means[p] for p in trained), before) | {"share": share})
        # What is left over shows in an ordinary backward pass: no gradient there, or a mean that moves.
        left = {
            "gradients": sum(p.grad is not None for p in model.parameters()),
            "replaced": sum(means[p].data_ptr() != own[p] for p in trained),
            "attached": sum(mean.requires_grad for mean in means.values()),
            "thawed": any(
                p.requires_grad or not torch.equal(p, was) for p, was in zip(model[0].parameters(), frozen, strict=True)
            ),
        }
        old = [mean.clone() for mean in means.values()]
        F.cross_entropy(model(x[:4]), y[:4].clamp(min=0)).backward()
        left["hooks"] = sum(not torch.equal(a, b) for a, b in zip(old, means.values(), strict=True))
        generator = torch.Generator().manual_seed(seed)
        probes = [torch.randn(p.shape, generator=generator).double() for p in trained]
        pairs = list(zip(trained, probes, strict=True))
        return {
            "parts": parts,
            "weights": [float((p.detach().cpu().double() * probe).sum()) for p, probe in pairs],
            "sizes": [p.numel() for p, _ in pairs],
            "left": left,
            "static": sum(p.nbytes for p in [*model.parameters(), *means.values()]) + x.nbytes + y.nbytes,
            "peak": peak,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "second" in seen:
            raised = f"{seen['second']['error']}: {seen['second']['text']}"[:200]
            return (
                f"Update 2 failed where update 1 did not ({raised}). Is a hook of the first one still there? "
                "Two hooks then meet one gradient."
            )
        if seen["left"]["thawed"]:
            return "The first layer is frozen: its parameters must stay as they are, and stay frozen."
        for update, (got, want) in enumerate(zip(seen["parts"], expected["parts"], strict=True), start=1):
            off = _off(got, want)
            if off:
                return f"Update {update}: {off}"
        # A sign may differ where a mean is almost zero: a few weights of thousands, 2 x RATE each and update.
        for a, b, size in zip(seen["weights"], expected["weights"], expected["sizes"], strict=True):
            if not abs(a - b) <= RATE * max(4.0, 0.5 * size**0.5):
                return "The weights moved otherwise: p - lr * sign(mean), once an update, after the last piece."
        left = seen["left"]
        if left["replaced"]:
            return "The running means must be updated in place: the dictionary holds other tensors now."
        if left["attached"]:
            return (
                f"{left['attached']} running means require gradients now: a graph of the weights hangs on them and "
                "grows with every update. Fade and decay belong under torch.no_grad()."
            )
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


LEAN = (SameUpdateWithinTheRoom,)
