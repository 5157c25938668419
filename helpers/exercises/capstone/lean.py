"""One update of the whole batch, with no room for its activations or its gradients.

More than the lab's folding is asked for: rows that do not count, a decay that belongs to the update and not to its
micro-batches, and a layer that is frozen. One unit of that layer is always 0. So some of the next layer's weights never
get a gradient: they are 0, their running means are 0, and both stay so.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
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
UPDATES = 3
IGNORED = -100  # the label of rows that do not count
IDLE = 5  # the unit of the frozen layer that is always 0


def _model() -> nn.Sequential:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).to(pick_device())
    model[0].requires_grad_(False)
    with torch.no_grad():
        for idle in (model[0][0].weight[IDLE], model[0][0].bias[IDLE], model[1][0].weight[:, IDLE]):
            idle.zero_()
    return model


def _labels(generator: torch.Generator) -> torch.Tensor:
    """Return classes, with two fifths of the rows left out: 33 in one stretch, the others here and there."""
    y = torch.randint(CLASSES, (ROWS,), generator=generator)
    y[torch.rand(ROWS, generator=generator) < 0.2] = IGNORED
    start = int(torch.randint(ROWS - 34, (1,), generator=generator))
    y[start : start + 33] = IGNORED
    return y


def _batches(seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    for _ in range(UPDATES):
        yield torch.randn(ROWS, WIDTH, generator=draws).to(pick_device()), _labels(draws).to(pick_device())


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().cpu().double().flatten() for t in tensors])


def _parts(mean: torch.Tensor, *before: torch.Tensor) -> dict[str, float]:
    """Return how much of the old mean, the gradient and the weights is in `mean`, and which share of it is neither."""
    basis = torch.stack(before, dim=1)
    if not (torch.isfinite(mean).all() and torch.isfinite(basis).all()):
        return dict.fromkeys(("fade", "gradient", "decay", "rest"), math.nan)
    scale = basis.norm(dim=0)
    solution = torch.linalg.lstsq(basis / scale, mean.unsqueeze(1)).solution
    rest = (mean - (basis / scale @ solution).squeeze(1)).norm() / mean.norm()
    fade, gradient, decay = (solution.squeeze(1) / scale).tolist()
    return {"fade": fade, "gradient": gradient, "decay": decay, "rest": float(rest)}


class _Subject:
    """A model and its running means, as if there had been updates."""

    def __init__(self) -> None:
        self.model = _model()
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.frozen = [p.detach().clone() for p in self.model.parameters() if not p.requires_grad]
        self.means = {p: torch.randn_like(p) * 5e-4 for p in self.trained}
        self.means[self.model[1][0].weight][:, IDLE] = 0
        self.own = {p: mean.data_ptr() for p, mean in self.means.items()}

    def look(self, x: torch.Tensor, y: torch.Tensor) -> list[list[torch.Tensor]]:
        """Return means, gradients of the whole batch, and weights, of each trained parameter."""
        gradients = torch.autograd.grad(F.cross_entropy(self.model(x), y), self.trained)
        kinds = [self.means[p] for p in self.trained], gradients, self.trained
        return [[t.detach().clone() for t in tensors] for tensors in kinds]

    def idle(self) -> Evidence:
        """Return how many weights of the idle unit have moved, and how many of them are NaN."""
        weights = self.model[1][0].weight[:, IDLE]
        return {"moved": int((weights != 0).sum()), "nan": int(weights.isnan().sum())}

    def left_over(self, x: torch.Tensor, y: torch.Tensor) -> Evidence:
        """Return what is left after the updates, also as an ordinary backward pass shows it: means that move."""
        hooks = _hooks_of(self.model)
        left = {
            "hooks": hooks,
            "gradients": sum(p.grad is not None for p in self.model.parameters()),
            "replaced": sum(self.means[p].data_ptr() != self.own[p] for p in self.trained),
            "attached": sum(mean.requires_grad for mean in self.means.values()),
            "thawed": any(
                p.requires_grad or not torch.equal(p, was)
                for p, was in zip(self.model[0].parameters(), self.frozen, strict=True)
            ),
        }
        old = [mean.clone() for mean in self.means.values()]
        F.cross_entropy(self.model(x[:4]), y[:4].clamp(min=0)).backward()
        moved = sum(not torch.equal(a, b) for a, b in zip(old, self.means.values(), strict=True))
        return left | {"moved": moved}

    def projected(self, seed: int) -> Evidence:
        """Return a number for each trained parameter that tells where it is, and its size."""
        generator = torch.Generator().manual_seed(seed)
        probes = [torch.randn(p.shape, generator=generator).double() for p in self.trained]
        pairs = zip(self.trained, probes, strict=True)
        weights = [float((p.detach().cpu().double() * probe).sum()) for p, probe in pairs]
        return {"weights": weights, "sizes": [p.numel() for p in self.trained]}


def _hooks_of(model: nn.Module) -> dict[str, int]:
    """Return how many hooks are on the parameters of `model`, and on its modules."""
    on_parameters = ("_backward_hooks", "_post_accumulate_grad_hooks")
    on_modules = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

    def count(owners: Iterable[Any], names: tuple[str, ...]) -> int:
        return sum(len(getattr(owner, name, None) or ()) for owner in owners for name in names)

    return {"parameters": count(model.parameters(), on_parameters), "modules": count(model.modules(), on_modules)}


def _parts_of(subject: _Subject, before: list[list[torch.Tensor]]) -> Evidence:
    """Return the parts of the running means now: of all, and of those of matrices and of biases alone."""
    now = [subject.means[p] for p in subject.trained]
    kinds = {"matrices": [p.dim() > 1 for p in now], "biases": [p.dim() == 1 for p in now]}

    def parts(chosen: list[bool]) -> dict[str, float]:
        return _parts(*(_flat(itertools.compress(tensors, chosen)) for tensors in (now, *before)))

    return parts([True] * len(now)) | {"alone": {kind: parts(chosen) for kind, chosen in kinds.items()}}


def _off_in_one_kind(got: Evidence, want: Evidence) -> str | None:
    """Say whether the decay is right in the matrices and wrong in the biases, or the other way round."""
    if not all(part["rest"] <= max(5e-3, 3 * want["alone"][kind]["rest"]) for kind, part in got["alone"].items()):
        return None  # something else is wrong, too
    times = {kind: part["decay"] / want["alone"][kind]["decay"] for kind, part in got["alone"].items()}
    wrong = [kind for kind in times if not abs(times[kind] - 1) <= 0.1]
    if len(wrong) != 1:
        return None
    right = next(kind for kind in times if kind not in wrong)
    return (
        f"the decay is right in the means of {right}, but {abs(times[wrong[0]]):.2f} times what it should be in "
        f"those of {wrong[0]}. Every trained parameter decays."
    )


def _off(got: Evidence, want: Evidence) -> str | None:
    """Say what is wrong with a running mean made of these parts ("share": that of rows that count)."""
    if got["fade"] != got["fade"]:
        return "the running means are NaN. If no row of a micro-batch counts, the mean of its losses is 0 / 0."
    if not abs(got["fade"] - want["fade"]) <= 3e-3:
        return (
            f"{got['fade']:.3f} of the old mean is left; expected {want['fade']:.3f}. Multiply the mean by 0.9 once "
            "per update, before the first micro-batch."
        )
    one_kind = _off_in_one_kind(got, want)
    if one_kind:
        return one_kind
    decay = got["decay"] / want["decay"]
    if not abs(decay - 1) <= 0.1:
        return (
            f"the mean holds {abs(decay):.2f} times as much decay as it should: (1 - 0.9) of {DECAY} * p, once per "
            "update, with the weights before the update."
        )
    if not got["rest"] <= max(5e-3, 3 * want["rest"]):
        return (
            f"{got['rest']:.1%} of the mean's norm comes neither from the old mean, nor from the gradient of the full "
            "batch, nor from the weights. Does every row that counts have the same weight, in any micro-batch? Is "
            "each gradient freed before the next micro-batch? Did the weights move before the last micro-batch?"
        )
    gradient = got["gradient"] / want["gradient"]
    if not abs(gradient - 1) <= 5e-3:
        if abs(gradient / want["share"] - 1) <= 5e-3:
            return "the gradient was divided by the number of all rows, including those that do not count."
        return (
            f"the mean holds {gradient:.2f} times as much of the gradient as it should: (1 - 0.9) of it, divided by "
            "the number of rows that count in the full batch. No hook may run twice."
        )
    return None


class SameUpdateWithinTheRoom(Check):
    """Successive updates equal those of the whole batch, and the peak stays within 100 KiB of extra memory."""

    hint = (
        "A hook on each parameter (register_post_accumulate_grad_hook) gets a gradient as soon as it exists: add it to "
        "the mean and free it. Multiply by 0.9 and add the decay once per update, before the first micro-batch. "
        "Divide by the number of rows that count in the full batch. Frozen parameters accept no hook. Remove the "
        "hooks at the end."
    )

    @staticmethod
    def probe(seed: int, lean_update: Callable[..., Any]) -> Evidence:
        torch.manual_seed(seed)
        subject = _Subject()
        batches = list(_batches(seed))
        parts: list[Evidence] = []
        changed: set[str] = set()
        for update, (x, y) in enumerate(batches, start=1):
            before, given = subject.look(x, y), (x.clone(), y.clone())
            meter = MemoryMeter(subject.model)
            with meter if update == len(batches) else contextlib.nullcontext():  # the first may warm something up
                with torch.no_grad():  # the meter counts what was touched: so touch all that is there from the start
                    for tensor in (*subject.means.values(), x, y):
                        tensor.add_(0)
                try:
                    lean_update(subject.model, subject.means, x, y, RATE)
                except Exception as error:
                    if update == 1:
                        raise
                    return {"later": {"update": update, "error": type(error).__name__, "text": str(error)[:200]}}
            peak = meter.profile.peak_bytes
            changed |= {name for name, t, was in zip("xy", (x, y), given, strict=True) if not torch.equal(t, was)}
            share = (given[1] != IGNORED).float().mean().item()  # Apple has no FP64
            parts.append(_parts_of(subject, before) | {"share": share, "idle": subject.idle()})
        return {
            "parts": parts,
            "left": {"changed": sorted(changed)} | subject.left_over(*given),
            **subject.projected(seed),
            "static": sum(t.nbytes for t in (*subject.model.parameters(), *subject.means.values(), x, y)),
            "peak": peak,
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "later" in seen:
            raised = f"{seen['later']['error']}: {seen['later']['text']}"[:200]
            return (
                f"Update {seen['later']['update']} failed, although update 1 did not ({raised}). Is a hook of update 1 "
                "still there? Then two hooks handle the same gradient."
            )
        if seen["left"]["thawed"]:
            return "The first layer is frozen: its parameters must not change, and must stay frozen."
        if seen["left"]["changed"]:
            return f"{seen['left']['changed'][0]} has changed. The batch must stay as it is; work on a copy."
        for update, (got, want) in enumerate(zip(seen["parts"], expected["parts"], strict=True), start=1):
            off = _off(got, want)
            if off:
                return f"Update {update}: {off}"
            if got["idle"]["moved"]:
                now = "are NaN now" if got["idle"]["nan"] else "have changed"
                return (
                    f"Update {update}: {got['idle']['moved']} weights whose running mean is exactly 0 {now}. sign(0) "
                    "is 0, so they should stay as they are."
                )
        # A sign may differ where a mean is almost zero: a few weights of thousands, 2 x RATE each and update.
        for a, b, size in zip(seen["weights"], expected["weights"], expected["sizes"], strict=True):
            if not abs(a - b) <= RATE * max(4.0, 0.5 * size**0.5):
                return (
                    "The weights should change to p - lr * sign(mean), once per update, after the last micro-batch; "
                    "they did not."
                )
        left = seen["left"]
        if left["replaced"]:
            return "The running means must be updated in place, but the dictionary now holds other tensors."
        if left["attached"]:
            return (
                f"{left['attached']} running means now require gradients: they hold a graph of the weights that "
                "grows with every update. Change the means under torch.no_grad()."
            )
        if left["moved"]:
            return "A backward pass after the update still changes the running means: remove the hooks."
        for of, where in (("parameters", "parameters"), ("modules", "layers")):
            if left["hooks"][of]:
                return (
                    f"Hooks left on the model's {where} after {len(seen['parts'])} updates: {left['hooks'][of]}. Even "
                    "hooks that do nothing accumulate. Remove each hook with its handle's remove()."
                )
        if left["gradients"]:
            return f"{left['gradients']} parameters still hold a gradient after the update; set it to None in the hook."
        over = seen["peak"] - seen["static"]
        if not over <= ROOM:
            return (
                f"In addition to weights, means and batch, the peak holds {human_bytes(over)}; at most "
                f"{human_bytes(ROOM)} are allowed. Are these gradients, or the activations of too many rows?"
            )
        return None


LEAN = (SameUpdateWithinTheRoom,)
