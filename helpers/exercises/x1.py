"""X1: mixed-precision training of a CNN. Ten checks of a point each.

The scaler's checks feed gradients by hand, so that every branch is met. The training step's checks hand it
PyTorch's own `GradScaler`, so that a mistake in the learner's scaler is not counted twice.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..data import digits
from ..device import pick_device
from ..memory import MemoryMeter
from ..models import SmallCNN
from .base import Check, Evidence, Part

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CLIP_OFF = 1e6  # a max_norm that no gradient reaches


def _close(seen: float, expected: float, tolerance: float) -> bool:
    """Say whether two figures agree within a relative `tolerance`. NaN agrees with nothing."""
    return abs(seen - expected) <= tolerance * abs(expected) + 1e-12


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()]).cpu()


# -- part 1: the scaler -------------------------------------------------------------------------------------


def _toy(optimizer: type[torch.optim.Optimizer], lr: float) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    """Return a linear model with a parameter that never gets a gradient, its optimizer, and a loss."""
    model = nn.Linear(6, 3)
    unused = nn.Parameter(torch.ones(2))
    loss = model(torch.randn(8, 6)).square().mean()
    return model, optimizer([*model.parameters(), unused], lr=lr), loss


class GradientIsUnscaled(Check):
    """The loss is multiplied by the scale, and the optimizer sees the gradient divided by it, once."""

    points = 1
    hint = "scale() multiplies; unscale_() divides every gradient in place; step() calls it only if you have not."

    @staticmethod
    def probe(seed: int, scaler_class: Any) -> Evidence:
        seen = {}
        for how in ("explicit", "implicit"):
            torch.manual_seed(seed)
            model, optimizer, loss = _toy(torch.optim.SGD, lr=1.0)
            scaler = scaler_class(init_scale=512.0)
            before = _weights(model)
            scaler.scale(loss).backward()
            seen[f"{how}_scaled"] = model.weight.grad.norm().item()
            if how == "explicit":
                scaler.unscale_(optimizer)
                seen["unscaled"] = model.weight.grad.norm().item()
            scaler.step(optimizer)
            scaler.update()
            seen[f"{how}_moved"] = (_weights(model) - before).norm().item()
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        what = {
            "explicit_scaled": "After scale(loss).backward() the gradient",
            "unscaled": "After unscale_() the gradient",
            "explicit_moved": "With unscale_() called before step() the update",
            "implicit_moved": "With step() alone the update",
        }
        for key, words in what.items():
            if not _close(seen[key], expected[key], 1e-3):
                ratio = seen[key] / expected[key]
                return f"{words} is {ratio:.4g} times what it should be (the scale was 512)."
        return None


class OverflowSkipsAndBacksOff(Check):
    """After an inf or NaN gradient nothing moves, step() says False, and the scale is multiplied by the backoff."""

    points = 1
    hint = "Look at every gradient with torch.isfinite before optimizer.step(); let update() reset what you found."

    @staticmethod
    def probe(seed: int, scaler_class: Any) -> Evidence:
        model, optimizer, loss = _toy(torch.optim.Adam, lr=0.1)
        scaler = scaler_class(init_scale=1024.0, backoff_factor=0.5)
        gradient = torch.autograd.grad(loss, model.weight)[0]
        log = []
        for bad in (None, float("inf"), None, float("nan"), float("-inf"), None):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) * scaler.get_scale()
            model.weight.grad += gradient
            if bad is not None:
                model.weight.grad[2, 5] = bad  # the last element: looking at the first is not enough
            before = _weights(model)
            stepped = scaler.step(optimizer)
            scaler.update()
            steps = optimizer.state[model.weight].get("step", 0)
            moved = not torch.equal(before, _weights(model))
            log.append([moved, int(steps), bool(stepped), float(scaler.get_scale())])
        return {"log": log}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for i, (got, want) in enumerate(zip(seen["log"], expected["log"], strict=True)):
            bad = not want[0]
            step = f"step {i + 1} ({'with an inf or NaN gradient' if bad else 'with finite gradients'})"
            if got[0] != want[0] or got[1] != want[1]:
                return f"In {step} the weights {'moved' if got[0] else 'did not move'}, optimizer steps: {got[1]}."
            if got[2] != want[2]:
                return f"In {step} step() returned {got[2]}; it should say whether the optimizer stepped."
            if got[3] != want[3]:
                return f"After {step} the scale is {got[3]:g}; it should be {want[3]:g}."
        return None


class ScaleGrows(Check):
    """After growth_interval good steps in a row the scale grows; a bad step starts the count again."""

    points = 1
    hint = (
        "Count good steps in update(); compare with growth_interval; set the count to 0 after growing and backing off."
    )

    @staticmethod
    def probe(seed: int, scaler_class: Any) -> Evidence:
        model, optimizer, _ = _toy(torch.optim.SGD, lr=0.0)
        scaler = scaler_class(init_scale=64.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=3)
        scales = []
        for good in "ggg ggb ggg gggg".replace(" ", ""):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 1.0 if good == "g" else float("inf"))
            scaler.step(optimizer)
            scaler.update()
            scales.append(float(scaler.get_scale()))
        return {"scales": scales}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["scales"] == expected["scales"]:
            return None
        pairs = zip(seen["scales"], expected["scales"], strict=True)
        i, got, want = next((i, got, want) for i, (got, want) in enumerate(pairs) if got != want)
        steps = "ggg ggb ggg gggg".replace(" ", "")[: i + 1]
        return (
            f"growth_interval=3, growth_factor=4, backoff_factor=0.25, start 64: after the steps {steps} "
            f"(g good, b bad) the scale is {got:g}; it should be {want:g}."
        )


# -- part 2: the training step ------------------------------------------------------------------------------


def _setting(seed: int, lr: float = 1.0) -> tuple[nn.Module, torch.optim.Optimizer, Tensor, Tensor]:
    """Return a small CNN, SGD, and 32 digits with their labels, the same for the same seed."""
    torch.manual_seed(seed)
    device = pick_device()
    model = SmallCNN(width=8).to(device)
    data = digits(device)
    index = torch.randint(len(data.train_x), (32,))
    return model, torch.optim.SGD(model.parameters(), lr=lr), data.train_x[index], data.train_y[index]


def _scaler(dtype: torch.dtype, init_scale: float = 2.0**10) -> torch.amp.GradScaler | None:
    if dtype != torch.float16:
        return None
    return torch.amp.GradScaler(pick_device().type, init_scale=init_scale, growth_interval=10**6)


class ForwardInLowPrecision(Check):
    """Convolutions and linear layers run in the dtype asked for, and the weights stay FP32."""

    points = 1
    hint = "Open torch.autocast(device_type, dtype=dtype) around the forward pass; leave the model as it is."

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        seen = {}
        for name, dtype in PRECISIONS.items():
            model, optimizer, x, y = _setting(seed)
            ran: dict[str, str] = {}

            def record(layer: nn.Module, _: Any, output: Tensor, ran: dict[str, str] = ran) -> None:
                ran[type(layer).__name__] = str(output.dtype).removeprefix("torch.")

            for layer in model.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    layer.register_forward_hook(record)
            try:
                train_step(model, optimizer, _scaler(dtype), x, y, dtype, CLIP_OFF)
            except ValueError:  # GradScaler refuses 16-bit gradients; that the weights are 16-bit says it better
                if {p.dtype for p in model.parameters()} == {torch.float32}:
                    raise
            weights = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()})
            seen[name] = {"layers": ran, "weights": weights}
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in PRECISIONS:
            got, want = seen[name], expected[name]
            if got["weights"] != want["weights"]:
                return f"dtype={name}: the model's weights became {', '.join(got['weights'])}; they must stay float32."
            for layer, dtype in want["layers"].items():
                if got["layers"].get(layer) != dtype:
                    return f"dtype={name}: {layer} ran in {got['layers'].get(layer)}; it should run in {dtype}."
        return None


class LossAndBackward(Check):
    """The loss is computed in FP32, and backward() runs outside autocast."""

    points = 1
    hint = "Leave the autocast block before backward(); cross_entropy(logits.float(), labels) keeps the loss in FP32."

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        device, errors, inside = pick_device().type, {}, {}
        for name, dtype in PRECISIONS.items():
            errors[name] = 0.0
            for batch in range(3):  # rounding may hide by chance in one batch
                model, optimizer, x, y = _setting(seed + batch)
                caught: dict[str, Tensor] = {}

                def look(_: Tensor, name: str = name) -> None:
                    inside[name] = torch.is_autocast_enabled(device)

                def keep(
                    _: nn.Module, __: Any, logits: Tensor, caught: dict[str, Tensor] = caught, look: Any = look
                ) -> None:
                    caught["logits"] = logits.detach().clone()
                    logits.register_hook(look)  # called when the backward pass comes by

                model.register_forward_hook(keep)
                loss = torch.as_tensor(train_step(model, optimizer, _scaler(dtype), x, y, dtype, CLIP_OFF))
                true = F.cross_entropy(caught["logits"].double(), y).item()
                errors[name] = max(errors[name], abs(float(loss) - true) / true)
        return {"errors": errors, "inside": inside}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in PRECISIONS:
            if seen["inside"].get(name) is not False:
                return (
                    f"dtype={name}: backward() ran inside the autocast block. Autograd already knows each op's dtype."
                )
            if not seen["errors"][name] <= 1e-5:
                return (
                    f"dtype={name}: the loss is off by {seen['errors'][name]:.1e} (relative) from cross-entropy in "
                    "FP32 of the same logits. Was it computed in 16 bit, or returned multiplied by the scale?"
                )
        return None


class ClipsTrueGradient(Check):
    """With FP16 and a scaler the clipped gradient is the true one, not the scaled one."""

    points = 1
    hint = "scaler.unscale_(optimizer) first, then clip_grad_norm_, then scaler.step(optimizer)."

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        moved = {}
        for max_norm in (CLIP_OFF, 0.05):
            model, optimizer, x, y = _setting(seed)
            before = _weights(model)
            train_step(model, optimizer, _scaler(torch.float16), x, y, torch.float16, max_norm)
            moved[str(max_norm)] = (_weights(model) - before).norm().item()
        return {"moved": moved}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for max_norm, want in expected["moved"].items():
            got = seen["moved"][max_norm]
            if not _close(got, want, 0.02):
                return (
                    f"max_norm={max_norm}, learning rate 1, scale 1024: the weights moved by {got:.4g}; the reference "
                    f"moves them by {want:.4g} ({got / want:.3g}x). Was the gradient clipped, and unscaled before that?"
                )
        return None


class StepsInARow(Check):
    """Three FP16 steps, an overflow in the second, end where the reference ends."""

    points = 1
    hint = "Each step: zero_grad, forward, scaled backward, unscale_, clip, scaler.step, scaler.update."

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        model, optimizer, x, y = _setting(seed, lr=0.05)
        scaler = _scaler(torch.float16)
        log = []
        for step in range(3):
            before = _weights(model)
            images = x.clone()
            if step == 1:
                images[0, 0, 0, 0] = float("inf")
            train_step(model, optimizer, scaler, images, y, torch.float16, 1.0)
            for layer in model.modules():  # the bad image has spoilt BatchNorm's running statistics, not the weights
                if isinstance(layer, nn.BatchNorm2d):
                    layer.reset_running_stats()
            log.append([(_weights(model) - before).norm().item(), float(scaler.get_scale())])
        return {"log": log}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        ways = (
            "Compare the first step with the reference: forward, backward, unscale_, clip, step.",
            "The gradient held inf or NaN: the step must go through scaler.step, which skips it.",
            "Were the old gradients cleared (zero_grad) before the new ones came?",
        )
        for i, (got, want) in enumerate(zip(seen["log"], expected["log"], strict=True)):
            if not _close(got[0], want[0], 0.02):
                return f"In step {i + 1} the weights moved by {got[0]:.4g}; the reference: {want[0]:.4g}. {ways[i]}"
            if got[1] != want[1]:
                return (
                    f"After step {i + 1} the scale is {got[1]:g}; it should be {want[1]:g}. Was scaler.update() called?"
                )
        return None


class SixteenBitsWithoutScaler(Check):
    """With scaler=None, BF16 and FP32 steps clip and move the weights as the reference does."""

    points = 1
    hint = "BF16 has FP32's range: no scaler. Then backward, clip_grad_norm_ and optimizer.step are called directly."

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        moved = {}
        for name in ("fp32", "bf16"):
            for max_norm in (CLIP_OFF, 0.05):
                model, optimizer, x, y = _setting(seed)
                before = _weights(model)
                for _ in range(2):
                    train_step(model, optimizer, None, x, y, PRECISIONS[name], max_norm)
                moved[f"{name}, max_norm={max_norm:g}"] = (_weights(model) - before).norm().item()
        return {"moved": moved}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for setting, want in expected["moved"].items():
            got = seen["moved"][setting]
            if not _close(got, want, 0.05):
                why = "No step was taken." if got == 0 else "Look at clipping and at zero_grad without a scaler."
                return f"{setting}: two steps moved the weights by {got:.4g}; the reference: {want:.4g}. {why}"
        return None


# -- part 3: the comparison ---------------------------------------------------------------------------------


class _ConvolutionDtypes(TorchDispatchMode):
    """Notes the dtype of every convolution that runs with gradients wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution_backward.default:
            self.seen.add(str(args[1].dtype).removeprefix("torch."))
        return func(*args, **(kwargs or {}))


class MemoryFalls(Check):
    """The peak reported is the peak measured, and 16-bit training holds less than FP32 does."""

    points = 1
    hint = "Measure one whole train_step, warmed up, with MemoryMeter(model, optimizer); report meter.peak_bytes."

    @staticmethod
    def probe(seed: int, train: Callable[..., dict], train_step: Callable[..., Tensor]) -> Evidence:
        seen = {}
        for name, dtype in PRECISIONS.items():
            result = train(name, seed=seed, epochs=1)
            data = digits(pick_device())
            model = result["model"]
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            scaler = _scaler(dtype)
            model.train()
            batch = data.train_x[:64], data.train_y[:64]
            train_step(model, optimizer, scaler, *batch, dtype, 1.0)  # Adam's state is born here
            with MemoryMeter(model, optimizer) as meter:
                train_step(model, optimizer, scaler, *batch, dtype, 1.0)
            activations = meter.largest["activations"]
            seen[name] = {
                "reported": int(result["peak_bytes"]), "measured": meter.peak_bytes, "activations": activations
            }  # fmt: skip
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in PRECISIONS:
            got, want = seen[name], expected[name]
            if got["activations"] > 1.1 * want["activations"]:
                return (
                    f"{name}: your train_step keeps {got['activations']:,} bytes of activations for the backward pass; "
                    f"the reference keeps {want['activations']:,}. Does the forward pass run under autocast?"
                )
            if not _close(got["measured"], want["measured"], 0.1):
                return f"{name}: your step peaks at {got['measured']:,} bytes, the reference {want['measured']:,}."
            if not _close(got["reported"], want["reported"], 0.1):
                return (
                    f"{name}: train() reports a peak of {got['reported']:,} bytes; a step of the reference at batch 64 "
                    f"peaks at {want['reported']:,}. Measure a whole step of the model that trains."
                )
        return None


class AccuracyHolds(Check):
    """All three precisions reach the accuracy of FP32, each really trained in its own precision."""

    points = 1
    hint = "Evaluate with model.eval() and torch.no_grad() on the test images; use DynamicLossScaler for FP16 only."

    @staticmethod
    def probe(seed: int, train: Callable[..., dict], train_step: Callable[..., Tensor]) -> Evidence:
        seen, data = {}, digits(pick_device())
        for name in PRECISIONS:
            start = time.perf_counter()
            with _ConvolutionDtypes() as dtypes:
                result = train(name, seed=seed)
            wall = time.perf_counter() - start
            model = result["model"].eval()
            with torch.no_grad():
                true = (model(data.test_x).argmax(1) == data.test_y).float().mean().item()
            seconds = float(result["step_seconds"])
            seen[name] = {
                "reported": float(result["accuracy"]),
                "measured": true,
                "convolutions": sorted(dtypes.seen),
                "seconds": "possible" if 0 < seconds < wall else f"{seconds:.3g} in a run of {wall:.3g}",
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        floor = expected["fp32"]["measured"] - 0.03
        for name in PRECISIONS:
            got, want = seen[name], expected[name]
            if got["convolutions"] != want["convolutions"]:
                ran = ", ".join(got["convolutions"]) or "nothing"
                return f"train('{name}') trained in {ran}; it should train in {want['convolutions'][0]}."
            if not got["measured"] >= floor:
                return f"train('{name}') reaches {got['measured']:.1%} of the test images; {floor:.1%} is expected."
            if not abs(got["reported"] - got["measured"]) <= 0.01:
                return f"train('{name}') reports {got['reported']:.1%}, but its model reaches {got['measured']:.1%}."
            if got["seconds"] != "possible":
                return f"train('{name}') reports step_seconds of {got['seconds']} s: that cannot be."
        return None


PARTS = (
    Part("x1.scaler", ("DynamicLossScaler",), (GradientIsUnscaled, OverflowSkipsAndBacksOff, ScaleGrows)),
    Part(
        "x1.step",
        ("train_step",),
        (ForwardInLowPrecision, LossAndBackward, ClipsTrueGradient, StepsInARow, SixteenBitsWithoutScaler),
    ),
    Part("x1.compare", ("train", "train_step"), (MemoryFalls, AccuracyHolds)),
)
