"""Checks of part 2: the training step, which is handed PyTorch's own `GradScaler`."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.device import pick_device
from ..base import Check, Evidence
from ..probing.measuring_weights import close, weights
from .loss import LossInFp32
from .shared import CLIP_OFF, PRECISIONS, CountingScaler, Shifted, scaler_for, setting

EVERY = 13  # weights: one is sent as evidence
NOT_UPDATED = (
    "scaler.update() was not called. Call it once in each step, after the steps of both optimizers, also where they "
    "are skipped: it adapts the scale, and PyTorch's scaler refuses the next unscale_() without it."
)
NEITHER = "neither optimizer may step, not even by its momentum."
SPOILED: tuple[tuple[tuple[str, float] | None, str], ...] = (  # in each step: a gradient, its value; what to look at
    (
        None,
        "Were the gradients of earlier steps cleared, in both? Is one norm clipped, over model.parameters(): all "
        "groups of both, whatever the model's parts are called?",
    ),
    (("head.bias", float("inf")), f"The head's gradient held inf: {NEITHER}"),
    (None, "Were the old gradients cleared (zero_grad) before the new ones came?"),
    (("features.0.weight", float("inf")), f"The features' gradient held inf, and the head's did not: {NEITHER}"),
    (("head.weight", float("nan")), f"The head's gradient held NaN: {NEITHER}"),
)
LONG = 1e6  # by which a gradient is multiplied, so that FP16 does not hold its norm
ASIDE = 0.1  # how far, of its length, a move may lie beside the reference's: what rounding in 16 bits explains


def _leave_gradients(model: nn.Module, scale: float) -> None:
    """Leave gradients behind, as an earlier step with this scale would."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, scale)


def _move(before: Tensor, model: nn.Module) -> Evidence:
    """Describe by what the weights moved: how far, and a sample of them for the direction."""
    moved = weights(model) - before
    return {"length": moved.norm().item(), "some": moved[::EVERY].tolist()}


def _wrong_move(seen: Evidence, right: Evidence, tolerance: float, aside: float = ASIDE) -> str | None:
    """Say how a move of the weights differs from the reference's: in length, or in direction."""
    if not close(seen["length"], right["length"], tolerance):
        return f"the weights moved by {seen['length']:.4g}; the reference moves them by {right['length']:.4g}."
    got, want = torch.tensor(seen["some"]), torch.tensor(right["some"])
    if not (F.normalize(got, dim=0) - F.normalize(want, dim=0)).norm() <= aside:
        cosine = F.cosine_similarity(got, want, dim=0).item()
        return f"the weights moved as far as the reference's, but in a different direction (cosine {cosine:.3f})."
    return None


def _ran(model: nn.Module) -> dict[str, list[str]]:
    """Return a dictionary that fills with the dtypes of what layers return, by the kind of layer."""
    ran: dict[str, list[str]] = {}

    def record(layer: nn.Module, _: Any, output: Tensor) -> None:
        ran.setdefault(type(layer).__name__, []).append(str(output.dtype).removeprefix("torch."))

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(record)
    return ran


def _wrong_dtype(got: dict[str, list[str]], want: dict[str, list[str]]) -> str | None:
    """Return the kind of layer that ran in a different dtype from the reference's."""
    for layer, dtypes in want.items():
        other = next((dtype for dtype in got.get(layer, []) if dtype != dtypes[0]), None)
        if other:
            return f"{layer} ran in {other}; it should run in {dtypes[0]}."
    return None


def _updated_too_often(updates: int) -> str:
    return (
        f"scaler.update() was called {updates} times in one step. It forgets which optimizers were unscaled, and which "
        "gradients overflowed: call it once, after the steps of both optimizers."
    )


class ForwardInLowPrecision(Check):
    """In one forward pass, convolutions and linear layers run in the dtype asked for, and the weights stay FP32."""

    points = 1
    hint = "Open torch.autocast(device_type, dtype=dtype) around the forward pass; leave the model as it is."

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        seen = {}
        for name, dtype in PRECISIONS.items():
            model, optimizers, x, y = setting(seed)
            ran = _ran(model)
            try:
                train_step(model, optimizers, scaler_for(dtype), x, y, dtype, CLIP_OFF)
            except ValueError:  # GradScaler refuses 16-bit gradients; that the weights are 16-bit says it better
                if {p.dtype for p in model.parameters()} == {torch.float32}:
                    raise
            weights = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()})
            seen[name] = {"layers": ran, "weights": weights, "autocast": torch.is_autocast_enabled(x.device.type)}
            torch.set_autocast_enabled(x.device.type, False)
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in PRECISIONS:
            got, want = seen[name], expected[name]
            if got["weights"] != want["weights"]:
                return f"dtype={name}: the model's weights became {', '.join(got['weights'])}; they must stay float32."
            wrong = _wrong_dtype(got["layers"], want["layers"])
            if wrong:
                return f"dtype={name}: {wrong}"
            for layer, dtypes in want["layers"].items():
                ran = got["layers"].get(layer, [])
                if len(ran) != len(dtypes):
                    return (
                        f"dtype={name}: {layer} layers ran {len(ran)} times; one forward pass makes {len(dtypes)}. "
                        "Each pass moves BatchNorm's running statistics and costs time: call the model once."
                    )
            if got["autocast"]:
                return f"dtype={name}: autocast is still on after the step. Use it as a `with` block."
        return None


class ClipsTrueGradient(Check):
    """With FP16 and a scaler the clipped gradient is the true one, not the scaled one."""

    points = 1
    hint = "scaler.unscale_(optimizer) first, then clip_grad_norm_, then scaler.step(optimizer)."

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        moved = {}
        for max_norm in (CLIP_OFF, 0.05):
            model, optimizers, x, y = setting(seed)
            before = weights(model)
            scaler = scaler_for(torch.float16)
            train_step(model, optimizers, scaler, x, y, torch.float16, max_norm)
            moved[str(max_norm)] = (weights(model) - before).tolist()
        model, optimizers, x, y = setting(seed, rows=70)
        before = weights(model)
        train_step(model, optimizers, scaler_for(torch.float16, 2.0), x, y, torch.float32, CLIP_OFF)
        return {
            "moved": moved,
            "updates": scaler.updates,
            "doubled": _move(before, model),
            "small": ClipsTrueGradient._small(seed, train_step),
        }

    @staticmethod
    def _small(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        """Return the move where FP16 holds the scaled gradients, and not the true ones: the model is almost sure."""
        model, optimizers, x, y = setting(seed, lr=1e6)
        with torch.no_grad():
            model.head.bias[0] = 14.0
        before = weights(model)
        scaler = scaler_for(torch.float16, init_scale=2.0**16)
        train_step(model, optimizers, scaler, x, torch.zeros_like(y), torch.float16, CLIP_OFF)
        return _move(before, model)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["updates"] > 1:
            return _updated_too_often(seen["updates"])
        for max_norm, right in expected["moved"].items():
            got, want = (torch.tensor(moved).norm().item() for moved in (seen["moved"][max_norm], right))
            if not close(got, want, 0.02):
                return (
                    f"max_norm={max_norm}, learning rate 1, scale 1024: the weights moved by {got:.4g}; the reference "
                    f"moves them by {want:.4g} ({got / want:.3g}x). "
                    "Was the gradient unscaled first, and then clipped to one norm over all parameters: of both "
                    "optimizers, and of each of their groups?"
                )
        unclipped, clipped = (F.normalize(torch.tensor(seen["moved"][str(m)]), dim=0) for m in (CLIP_OFF, 0.05))
        if not (clipped - unclipped).norm() <= 0.05:
            return (
                "Clipped, the weights move as far as they should, but in another direction than unclipped. "
                "Clipping the norm over all parameters multiplies every gradient by the same number."
            )
        wrong = _wrong_move(seen["doubled"], expected["doubled"], 0.02)
        if wrong:
            return (
                f"FP32, a scale of 2, unclipped, 70 images: {wrong} Does the scaled loss of all images go into the "
                "gradient, and nothing else?"
            )
        wrong = _wrong_move(seen["small"], expected["small"], 0.05, ASIDE / 2)
        if wrong and not seen["small"]["length"]:
            return (
                f"A model that is almost sure, at a scale of 65,536: {wrong} Its loss is zero in 16 bits, and its "
                "unscaled gradients are zero in FP16. Are both in FP32?"
            )
        if wrong:
            return (
                f"Gradients too small for FP16 before they are scaled: {wrong} Keep the unscaled gradients in FP32, "
                "and convert the logits to FP32 once: what comes back through two conversions is added in FP16."
            )
        return None


class StepsInARow(Check):
    """Five steps through a scaler: if the gradient of one optimizer overflows, neither optimizer steps."""

    points = 1
    hint = (
        "Each step: zero_grad, forward, scaled backward, unscale_ both, clip, scaler.step both or neither, then one "
        "scaler.update.\n"
        "GradScaler decides for each optimizer separately. The norm that clipping returns tells you about both."
    )

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        return {name: StepsInARow._steps(seed, train_step, dtype) for name, dtype in PRECISIONS.items()}

    @staticmethod
    def _steps(seed: int, train_step: Callable[..., Tensor], dtype: torch.dtype) -> list[Evidence]:
        """Return by what the weights moved in each step, and the scale and the model's mode after it."""
        model, optimizers, x, y = setting(seed, lr=0.05, momentum=0.9, kind=Shifted)
        scaler = CountingScaler(pick_device().type, init_scale=2.0**10)
        four = SimpleNamespace(scale=scaler.scale, unscale_=scaler.unscale_, step=scaler.step, update=scaler.update)
        _leave_gradients(model, scale=scaler.get_scale())
        log = []
        ran = _ran(model)
        for spoiled, _ in SPOILED:
            before = weights(model)
            spoil = None
            if spoiled:
                layer, number = spoiled
                parameter = model.get_parameter(layer)
                spoil = parameter.register_hook(lambda gradient, number=number: torch.full_like(gradient, number))
            try:
                train_step(model, optimizers, four, x, y, dtype, 0.3)
            except RuntimeError:
                if scaler.updates < 2:
                    raise
            if spoil:
                spoil.remove()
            log.append(
                {
                    "moved": _move(before, model),
                    "scale": float(scaler.get_scale()),
                    "updates": scaler.updates,
                    "layers": {layer: sorted(set(dtypes)) for layer, dtypes in ran.items()},
                    "training": all(module.training for module in model.modules()),
                }
            )
            if scaler.updates != 1:
                return log  # PyTorch's scaler refuses the next step
            scaler.updates = 0
        return log

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name, log in expected.items():
            for i, (got, want) in enumerate(zip(seen[name], log, strict=False)):
                where = f"dtype={name} with a scaler, step {i + 1}"
                if got["updates"] > 1:
                    return f"{where}: {_updated_too_often(got['updates'])}"
                if not got["updates"]:
                    return f"{where}: {NOT_UPDATED}"
                if not got["training"]:
                    return f"{where}: the model, or a part of it, is in evaluation mode afterwards; leave its mode."
                wrong = _wrong_dtype(got["layers"], want["layers"])
                if wrong:
                    return f"{where}: {wrong} That does not depend on whether there is a scaler."
                wrong = _wrong_move(got["moved"], want["moved"], 0.02)
                if wrong:
                    return f"{where}: {wrong} {SPOILED[i][1]}"
                if got["scale"] != want["scale"]:
                    scale, right = got["scale"], want["scale"]
                    return f"{where}: the scale is then {scale:g}, not {right:g}. Was scaler.update() called?"
        return None


class SixteenBitsWithoutScaler(Check):
    """With scaler=None, each step clips the gradient and moves the weights as the reference does, in each precision."""

    points = 1
    hint = "Without a scaler nothing is scaled: backward, clip_grad_norm_ and optimizer.step are called directly."

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        moved = {}
        for name, dtype in PRECISIONS.items():
            for max_norm in (CLIP_OFF, 0.05):
                model, optimizers, x, y = setting(seed, kind=Shifted)
                before, ran, arrived = weights(model), _ran(model), []
                model.head.bias.register_hook(lambda gradient, arrived=arrived: arrived.append(gradient.norm().item()))
                _leave_gradients(model, scale=1.0)
                for _ in range(2):
                    train_step(model, optimizers, None, x, y, dtype, max_norm)
                layers = {layer: sorted(set(dtypes)) for layer, dtypes in ran.items()}
                one = {**_move(before, model), "layers": layers, "arrived": arrived[:1]}
                moved[f"{name}, max_norm={max_norm:g}"] = one
        model, optimizers, x, y = setting(seed, rows=1)
        before = weights(model)
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: LONG * gradient)
        train_step(model, optimizers, None, x, y, torch.float32, 0.05)
        return {"moved": moved, "long": _move(before, model)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected["moved"].items():
            got = seen["moved"][case]
            wrong = _wrong_dtype(got["layers"], want["layers"])
            if wrong:
                return f"{case}, no scaler: {wrong} That does not depend on whether there is a scaler."
            for a, b in zip(got["arrived"], want["arrived"], strict=False):
                if not close(a, b, 0.05):
                    return (
                        f"{case}, no scaler: the gradient that arrives at the head is {a / b:.4g} times as long as the "
                        "reference's. Without a scaler, backward() starts from the mean loss itself."
                    )
            wrong = _wrong_move(got, want, 0.05)
            if wrong:
                why = (
                    "Look at clipping and at zero_grad without a scaler."
                    if got["length"]
                    else "Without a scaler, optimizer.step() must be called directly."
                )
                return f"{case}, after two steps: {wrong} {why}"
        wrong = _wrong_move(seen["long"], expected["long"], 0.02)
        if wrong:
            return (
                f"fp32, max_norm=0.05, one image, a gradient whose norm is about {LONG:,.0f}: {wrong} Clip such a "
                "gradient as any other, by a norm that is computed in FP32."
            )
        return None


STEP = (ForwardInLowPrecision, LossInFp32, ClipsTrueGradient, StepsInARow, SixteenBitsWithoutScaler)
