"""X2: a batch of 256 as micro-batches. Ten checks of a point each.

Numbers are compared in FP64 on the CPU, where "equal to rounding" leaves no room for a wrong divisor. Memory is
measured where the learner's model would run. Hooks record what the model was fed and how
often the optimizer stepped.
"""

import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from ..core.data import digits
from ..core.device import pick_device
from ..core.models import SmallCNN, SmallGPT
from ..meter.recorder import MemoryMeter
from .base import Check, Evidence, Part
from .probing.distance import relative_distance

_FEATURES, _HIDDEN = 12, 16  # of the small classifier
IGNORED = -100  # target of a position that does not count, as in F.cross_entropy
EXACT = 1e-6  # relative; room for a weight that somebody has rounded to FP32, and for no wrong divisor


def _weights(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()]).cpu().tolist()


def _classifier(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a small classifier in FP64, and SGD, whose update is the gradient itself."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(_FEATURES, _HIDDEN), nn.Tanh(), nn.Linear(_HIDDEN, 5)).double()
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def _rows(n: int) -> tuple[Tensor, Tensor]:
    """Return `n` rows whose losses differ a great deal, so that weighting them wrongly shows."""
    x = torch.randn(n, _FEATURES, dtype=torch.float64) * torch.linspace(0.2, 3.0, n, dtype=torch.float64)[:, None]
    return x, torch.randint(5, (n,))


class _Spy:
    """Counts the rows of each forward call of a model, and the steps of its optimizer."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.rows: list[int] = []
        self.steps = 0
        model.register_forward_pre_hook(lambda _, args: self.rows.append(len(args[0])))
        optimizer.register_step_post_hook(self._stepped)

    def _stepped(self, *_: object) -> None:
        self.steps += 1


def _most_rows(profiler: profile) -> int:
    """Return the most rows of features in one product, whoever asked for it: one may go past the model's own call.

    The backward pass has its rows in the sum: there the second matrix is not of the weight's shape.
    """
    names = ("aten::mm", "aten::addmm", "aten::bmm")
    products = [event.input_shapes for event in profiler.events() if event.name in names]
    sides = [[shape[-2:] for shape in shapes if len(shape) > 1][-2:] for shapes in products]
    return max((left[0] for left, right in sides if tuple(right) == (_FEATURES, _HIDDEN)), default=0)


def _leave_gradients(model: nn.Module) -> None:
    """Leave gradients behind, as an earlier step would."""
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)


def _one_step(accumulated_step: Any, seed: int, rows: int, micro_batch: int, leftover: bool = False) -> Evidence:
    model, optimizer = _classifier(seed)
    x, y = _rows(rows)
    spy = _Spy(model, optimizer)
    if leftover:
        _leave_gradients(model)
    before = _weights(model)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True
    ) as profiler:  # not a mode: those can be switched off
        loss = accumulated_step(model, optimizer, F.cross_entropy, x, y, micro_batch)
    after = _weights(model)
    return {
        "rows": spy.rows,
        "largest": _most_rows(profiler),
        "steps": spy.steps,
        "moved": [b - a for b, a in zip(before, after, strict=True)],
        "loss": float(loss),
        "attached": bool(getattr(loss, "requires_grad", False)),
    }


def _wrong_update(seen: list[float], expected: list[float], tolerance: float = EXACT) -> str | None:
    if relative_distance(seen, expected) <= tolerance:
        return None
    a, b = torch.tensor(seen), torch.tensor(expected)
    ratio = (a.norm() / b.norm()).item()
    cosine = F.cosine_similarity(a, b, dim=0).item()
    if cosine > 0.9999:
        return f"The update points the right way and is {ratio:.4g} times as long as the whole batch's."
    return f"The update is not the whole batch's: cosine {cosine:.4f}, {ratio:.4g} times as long."


# -- part 1: the step ---------------------------------------------------------------------------------------


class UpdateEqualsFullBatch(Check):
    """256 rows in micro-batches of 64 move the weights as one batch of 256 does, to rounding."""

    points = 1
    hint = "The mean over 256 rows is not the sum of four means. What must each micro-batch's loss be multiplied by?"

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        moved = {str(m): _one_step(accumulated_step, seed, 256, m)["moved"] for m in (64, 32, 256)}
        return moved | {"leftover": _one_step(accumulated_step, seed, 256, 64, leftover=True)["moved"]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for micro_batch in ("64", "32", "256"):
            wrong = _wrong_update(seen[micro_batch], expected["256"])
            if wrong:
                return f"Micro-batches of {micro_batch}: {wrong}"
        if _wrong_update(seen["leftover"], expected["256"]):
            return "Gradients that were there before your step are in its update: clear them first."
        return None


class RaggedLastMicroBatch(Check):
    """When the last micro-batch is smaller, every row still weighs the same."""

    points = 1
    hint = "Weigh each micro-batch by its rows: len(micro-batch) / len(batch), not 1 / number of micro-batches."

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        sizes = ((200, 64), (65, 64), (10, 64), (7, 3))
        return {f"{n} rows by {m}": _one_step(accumulated_step, seed, n, m)["moved"] for n, m in sizes}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            wrong = _wrong_update(seen[case], want)
            if wrong:
                return f"{case}: {wrong}"
        return None


class OneStepOfMicroBatches(Check):
    """The model sees micro-batches only, the optimizer steps once, and the mean loss comes back detached."""

    points = 1
    hint = "Loop over x.split(micro_batch) and y.split(micro_batch); step after the loop; return numbers, not graphs."

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        seen = {}
        for rows, micro_batch in ((256, 64), (200, 64)):
            one = _one_step(accumulated_step, seed, rows, micro_batch)
            seen[f"{rows} by {micro_batch}"] = {
                key: one[key] for key in ("rows", "largest", "steps", "loss", "attached")
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["rows"] != want["rows"]:
                return f"{case}: the model was called with {got['rows']} rows; it should see {want['rows']}."
            if not got["largest"] <= want["largest"]:
                return f"{case}: {got['largest']} rows went through the first layer at once, past the model's own call."
            if got["steps"] != 1:
                return f"{case}: the optimizer stepped {got['steps']} times."
            if not abs(got["loss"] - want["loss"]) <= 1e-6 * abs(want["loss"]):  # NaN is caught, too
                return f"{case}: the returned loss is {got['loss']:.6g}; the mean over all rows is {want['loss']:.6g}."
            if got["attached"]:
                return f"{case}: the returned loss still hangs on its graph: return loss.detach()."
        return None


class MemoryFallsToTheMicroBatch(Check):
    """The peak is that of a micro-batch plus the gradients, not that of the whole batch."""

    points = 1
    hint = (
        "Call backward() for each micro-batch before the next forward pass, so that its activations are let go; "
        "keep neither losses nor outputs that carry a graph."
    )

    @staticmethod
    def probe(seed: int, accumulated_step: Any) -> Evidence:
        torch.manual_seed(seed)
        device = pick_device()
        data = digits(device, size=16)
        smallest = 12 + torch.randint(9, ()).item()
        x, y = data.train_x[: 16 * smallest].clone(), data.train_y[: 16 * smallest].clone()
        model = SmallCNN(8).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = {}
        for micro_batch in (16 * smallest, 4 * smallest, smallest):
            with MemoryMeter(model, optimizer) as meter:
                accumulated_step(model, optimizer, F.cross_entropy, x, y, micro_batch)
            seen[str(micro_batch)] = meter.peak_bytes - x.nbytes - y.nbytes
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        whole_batch, *micro_batches = expected
        for micro_batch in micro_batches:
            if not seen[micro_batch] <= 1.3 * expected[micro_batch]:
                held, enough = seen[micro_batch] / 2**20, expected[micro_batch] / 2**20
                whole = expected[whole_batch] / 2**20
                return (
                    f"With micro-batches of {micro_batch} the step holds {held:.1f} MiB beside the batch; {enough:.1f} "
                    f"are enough (the whole batch at once: {whole:.1f})."
                )
        return None


# -- part 2: tokens -----------------------------------------------------------------------------------------


class TokensWeighTheSame(Check):
    """Every target that counts weighs the same, whichever micro-batch it lies in."""

    points = 1
    hint = (
        "Sum the losses of a micro-batch (reduction='sum') and divide by the number of targets that count in the whole "
        "batch. A micro-batch may have none."
    )

    @staticmethod
    def probe(seed: int, token_step: Any) -> Evidence:
        rng = random.Random(seed)
        seen = {}
        for case, empty in (("lengths differ", False), ("a micro-batch without targets", True)):
            torch.manual_seed(seed)
            model = SmallGPT(vocabulary=11, context=12, layers=1, width=16, heads=2).double()
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            ids = torch.randint(11, (10, 12))
            targets = torch.randint(11, (10, 12))
            for row in range(10):
                targets[row, rng.randint(1, 12) :] = IGNORED
            if empty:
                targets[4:8] = IGNORED
            spy = _Spy(model, optimizer)
            _leave_gradients(model)
            before = _weights(model)
            loss = token_step(model, optimizer, ids, targets, 4)
            moved = [b - a for b, a in zip(before, _weights(model), strict=True)]
            attached = bool(getattr(loss, "requires_grad", False))
            loss = float(loss.detach() if attached else loss)
            seen[case] = {"moved": moved, "loss": loss, "most": max(spy.rows), "steps": spy.steps, "attached": attached}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["most"] > 4:
                return f"{case}: the model was called with {got['most']} rows at once; a micro-batch has 4."
            if got["steps"] != 1:
                return f"{case}: the optimizer stepped {got['steps']} times."
            if got["attached"]:
                return f"{case}: the returned loss still hangs on its graph: return loss.detach()."
            wrong = _wrong_update(got["moved"], want["moved"])
            if wrong:
                return f"{case}: {wrong}"
            if not abs(got["loss"] - want["loss"]) <= 1e-6 * abs(want["loss"]):  # NaN is caught, too
                return (
                    f"{case}: the returned loss is {got['loss']:.6g}; the mean over all targets is {want['loss']:.6g}."
                )
        return None


# -- part 3: scaler and clipping ----------------------------------------------------------------------------


class _LoggingScaler(torch.amp.GradScaler):
    """PyTorch's scaler on the CPU, with a log of its calls."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=1024.0)
        self.log: list[str] = []

    def scale(self, outputs: Any) -> Any:
        self.log.append("scale")
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.log.append("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        self.log.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        self.log.append("update")
        super().update(new_scale)


class ClipsTheWholeGradientOnce(Check):
    """The true gradient of the whole batch is clipped: unscaled once, after the last micro-batch."""

    points = 1
    hint = (
        "scale() and backward() inside the loop, each piece weighed by its rows; unscale_, clip_grad_norm_, step and "
        "update once, after it. Clipping before unscale_ clips a gradient that is 1024 times too long here."
    )

    @staticmethod
    def probe(seed: int, scaled_step: Any) -> Evidence:
        seen = {}
        for case, max_norm in (("clipping", 0.05), ("no clipping", 1e6)):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5))  # FP32: the scaler takes no FP64
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            x, y = _rows(200)
            scaler = _LoggingScaler()
            _leave_gradients(model)
            before = _weights(model)
            scaled_step(model, optimizer, scaler, x.float(), y, 64, max_norm)
            moved = [b - a for b, a in zip(before, _weights(model), strict=True)]
            seen[case] = {"moved": moved, "log": scaler.log}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            for call in ("scale", "unscale_", "step", "update"):
                if got["log"].count(call) != want["log"].count(call):
                    counts = got["log"].count(call), want["log"].count(call)
                    return (
                        f"{case}: scaler.{call} was called {counts[0]} times; {counts[1]} is right for 4 micro-batches."
                    )
            if got["log"][-3:] != ["unscale_", "step", "update"]:
                return f"{case}: the scaler's last calls were {', '.join(got['log'][-3:])}."
            wrong = _wrong_update(got["moved"], want["moved"], tolerance=1e-4)  # FP32
            if wrong:
                return f"{case}: {wrong}"
        return None


# -- part 4: an epoch ---------------------------------------------------------------------------------------


def _epoch(train_epoch: Any, seed: int, sizes: list[int], accumulate: int) -> Evidence:
    model, optimizer = _classifier(seed)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    x, y = _rows(sum(sizes))
    spy = _Spy(model, optimizer)
    _leave_gradients(model)

    def loader() -> Iterator[tuple[Tensor, Tensor]]:  # has no length and can be read once, like a stream
        yield from zip(x.split(sizes), y.split(sizes), strict=True)

    before = _weights(model)
    losses = train_epoch(model, optimizer, scheduler, F.cross_entropy, loader(), accumulate)
    moved = [b - a for b, a in zip(before, _weights(model), strict=True)]
    rate = scheduler.get_last_lr()[0]
    return {"moved": moved, "losses": [float(v) for v in losses], "steps": spy.steps, "rows": spy.rows, "rate": rate}


class LastGroupCounts(Check):
    """Micro-batches left over at the end of an epoch make a smaller group with an update of its own."""

    points = 1
    hint = (
        "Each row of a group weighs 1 / (rows of the group); gradients are cleared before the first and after each "
        "update; what is left when the loader ends is a group, too; the optimizer steps before the scheduler."
    )

    @staticmethod
    def probe(seed: int, train_epoch: Any) -> Evidence:
        cases = {
            "8 micro-batches, 4 a step": ([16] * 8, 4),
            "10 micro-batches, 4 a step": ([16] * 10, 4),
            "3 micro-batches, 4 a step": ([16] * 3, 4),
            "ragged, 3 a step": ([16, 16, 16, 16, 5], 3),
        }
        return {case: _epoch(train_epoch, seed, sizes, n) for case, (sizes, n) in cases.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            if got["steps"] != want["steps"]:
                return f"{case}: {got['steps']} updates; it should be {want['steps']}."
            if got["rows"] != want["rows"]:
                return f"{case}: the model was called with {got['rows']} rows; it should see {want['rows']}."
            wrong = _wrong_update(got["moved"], want["moved"])
            if wrong:
                return f"{case}, weights after the epoch. {wrong}"
            if not relative_distance(got["losses"], want["losses"]) <= 1e-6:
                return f"{case}: the losses are {got['losses']}; one mean for each update: {want['losses']}."
        return None


class SchedulerStepsWithTheOptimizer(Check):
    """The learning rate moves once for each update, not for each micro-batch."""

    points = 1
    hint = "A schedule is written in updates: scheduler.step() belongs right after optimizer.step()."

    @staticmethod
    def probe(seed: int, train_epoch: Any) -> Evidence:
        got = _epoch(train_epoch, seed, [8] * 4 * (2 + seed % 4), 4)
        return {"rate": got["rate"], "steps": got["steps"]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if abs(seen["rate"] - expected["rate"]) < 1e-12:
            return None
        moves = round(0.1 / seen["rate"]) - 1
        return (
            f"After {4 * expected['steps']} micro-batches and {expected['steps']} updates the scheduler has moved "
            f"{moves} times; the schedule is in updates."
        )


# -- part 5: normalization ----------------------------------------------------------------------------------


class _Nested(nn.Module):
    """A model that keeps a BatchNorm in every kind of place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(4)
        self.stages = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)), nn.BatchNorm2d(6)]
        )
        self.named = nn.ModuleDict({"last": nn.BatchNorm2d(6, eps=0.01)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for stage in self.stages:
            x = stage(x)
        return self.named["last"](x).mean((2, 3))


def _shake(model: nn.Module) -> None:
    """Give scales and shifts values that tell them apart."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -1, 1)


def _norms(model: nn.Module) -> list[list[Any]]:
    return [
        [
            type(m).__name__,
            m.num_groups,
            m.num_channels,
            m.eps,
            str(m.weight.dtype),
            m.weight.sum().item(),
            m.bias.sum().item(),
        ]
        for m in model.modules()
        if isinstance(m, nn.GroupNorm)
    ]


class EveryBatchNormIsReplaced(Check):
    """Each BatchNorm2d, however deep, becomes a GroupNorm with its scale, shift, eps and dtype."""

    points = 1
    hint = "named_children() of every module, and setattr for those of type nn.BatchNorm2d; copy weight and bias."

    @staticmethod
    def probe(seed: int, with_group_norm: Any) -> Evidence:
        torch.manual_seed(seed)
        seen = {}
        for name, model in {"nested": _Nested(), "CNN in FP64": SmallCNN(8).double()}.items():
            _shake(model)
            new = with_group_norm(model, 2)
            left = sum(isinstance(m, nn.BatchNorm2d) for m in new.modules())
            seen[name] = {"left": left, "norms": _norms(new), "same": new is model}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, want in expected.items():
            got = seen[name]
            if not got["same"]:
                return f"{name}: another model came back; replace the norms in place and return the same object."
            if got["left"]:
                return f"{name}: {got['left']} BatchNorm2d are left."
            if len(got["norms"]) != len(want["norms"]):
                return f"{name}: {len(got['norms'])} GroupNorms stand where {len(want['norms'])} BatchNorms stood."
            for i, (a, b) in enumerate(zip(got["norms"], want["norms"], strict=True)):
                for field, x, y in zip(
                    ("type", "groups", "channels", "eps", "dtype", "weight", "bias"), a, b, strict=True
                ):
                    same = abs(x - y) <= 1e-6 * (1 + abs(y)) if isinstance(y, float) else x == y
                    if not same:
                        return f"{name}: {field} of norm {i + 1} is {x}; it should be {y}."
        return None


class MicroBatchesNoLongerMatter(Check):
    """In training mode a row's output depends on that row alone, and accumulation equals the whole batch again."""

    points = 1
    hint = (
        "Statistics over the rows of a batch change with the micro-batch; statistics over a row's own channels do not."
    )

    @staticmethod
    def probe(seed: int, with_group_norm: Any) -> Evidence:
        torch.manual_seed(seed)
        model = SmallCNN(8).double()
        _shake(model)
        model = with_group_norm(model, 4)
        model.train()
        x = torch.randn(24, 1, 8, 8, dtype=torch.float64)
        y = torch.randint(10, (24,))
        whole, parts = model(x), torch.cat([model(part) for part in x.split(8)])
        gradient = torch.autograd.grad(F.cross_entropy(whole, y), list(model.parameters()))
        pieces = torch.autograd.grad(F.cross_entropy(parts, y), list(model.parameters()))
        flat, other = (torch.cat([g.flatten() for g in gs]) for gs in (gradient, pieces))
        return {
            "outputs differ": (whole - parts).abs().max().item(),
            "gradients differ": ((flat - other).norm() / flat.norm()).item(),
            "output": whole.norm().item(),
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for what in ("outputs differ", "gradients differ"):
            if not seen[what] <= 1e-9:
                return f"Split 24 rows into three micro-batches: {what} by {seen[what]:.3g}."
        if not abs(seen["output"] - expected["output"]) <= 1e-6 * expected["output"]:
            return "The outputs are not those of GroupNorm with the same scale and shift."
        return None


PARTS: tuple[Part, ...] = (
    Part(
        "x2.step",
        ("accumulated_step",),
        (UpdateEqualsFullBatch, RaggedLastMicroBatch, OneStepOfMicroBatches, MemoryFallsToTheMicroBatch),
    ),
    Part("x2.tokens", ("token_step",), (TokensWeighTheSame,)),
    Part("x2.scaled", ("scaled_step",), (ClipsTheWholeGradientOnce,)),
    Part("x2.epoch", ("train_epoch",), (LastGroupCounts, SchedulerStepsWithTheOptimizer)),
    Part("x2.groupnorm", ("with_group_norm",), (EveryBatchNormIsReplaced, MicroBatchesNoLongerMatter)),
)
