"""X1: mixed-precision training of a CNN. Ten checks of a point each.

The scaler's checks feed gradients by hand, so that every branch is met. The training step's checks hand it
PyTorch's own `GradScaler`, so that a mistake in the learner's scaler is not counted twice.
"""

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..core.data import digits
from ..core.device import pick_device
from ..core.models import SmallCNN
from ..meter.recorder import MemoryMeter
from .base import Check, Evidence, Part
from .probing.fingerprint import OTHER_DATA, fingerprint
from .probing.plain import plain

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ROUNDING = {"float32": 1e-4, "bfloat16": 2.0**-7, "float16": 2.0**-10}  # of a gradient of this dtype: twice its own
CLIP_OFF = 1e6  # a max_norm that no gradient reaches


def _close(seen: float, expected: float, tolerance: float) -> bool:
    """Say whether two figures agree within a relative `tolerance`. NaN agrees with nothing."""
    return abs(seen - expected) <= tolerance * abs(expected) + 1e-12


def _weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().float().flatten() for p in model.parameters()]).cpu()


# -- part 1: the scaler -------------------------------------------------------------------------------------


def _toy(optimizer: type[torch.optim.Optimizer], lr: float) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    """Return a linear model, its optimizer and a loss.

    The optimizer has two groups of parameters, and one parameter that never gets a gradient.
    """
    device = pick_device()
    model = nn.Linear(6, 3).to(device)
    unused = nn.Parameter(torch.ones(2, device=device))
    loss = model(torch.randn(8, 6).to(device)).square().mean()
    return model, optimizer([{"params": [model.weight, unused]}, {"params": [model.bias]}], lr=lr), loss


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
            scaled = scaler.scale(loss)
            seen[f"{how}_loss"] = [scaled.item(), loss.item()]
            scaled.backward()
            seen[f"{how}_scaled"] = model.weight.grad.norm().item()
            if how == "explicit":
                held = model.weight.grad
                scaler.unscale_(optimizer)
                seen["in_place"] = held.norm().item()
                seen["unscaled"] = model.weight.grad.norm().item()
                seen["unscaled_bias"] = model.bias.grad.norm().item()
            scaler.step(optimizer)
            scaler.update()
            seen[f"{how}_moved"] = (_weights(model) - before).norm().item()
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        scaled, loss = seen["explicit_loss"]
        if not _close(scaled, 512 * loss, 1e-3):
            return f"scale(loss) is {scaled / loss:.4g} times the loss; the scale was 512."
        what = {
            "explicit_scaled": "After scale(loss).backward() the gradient",
            "unscaled": "After unscale_() the gradient",
            "unscaled_bias": "After unscale_() the gradient in the optimizer's second group of parameters",
            "explicit_moved": "With unscale_() called before step() the update",
            "implicit_moved": "With step() alone the update",
        }
        for key, words in what.items():
            if not _close(seen[key], expected[key], 1e-3):
                ratio = seen[key] / expected[key]
                return f"{words} is {ratio:.4g} times what it should be (the scale was 512)."
        if not _close(seen["in_place"], expected["in_place"], 1e-3):
            return "unscale_() has put another tensor into .grad: divide the gradient in place, as others may hold it."
        return None


class OverflowSkipsAndBacksOff(Check):
    """After an inf or NaN gradient nothing moves, step() says False, and the scale is multiplied by the backoff."""

    points = 1
    hint = "Look at every gradient with torch.isfinite before optimizer.step(); let update() reset what you found."

    @staticmethod
    def probe(seed: int, scaler_class: Any) -> Evidence:
        drawn = random.Random(seed)
        bads = [None, float("inf"), None, float("nan"), float("-inf"), None]
        drawn.shuffle(bads)
        model, optimizer, loss = _toy(torch.optim.Adam, lr=0.1)
        scaler = scaler_class(init_scale=2.0 ** drawn.randrange(8, 13), backoff_factor=0.5)
        gradient = torch.autograd.grad(loss, model.weight)[0]
        log, places = [], itertools.cycle((model.weight, model.bias))
        for bad, explicit in zip(bads * 2, [True, False] * 3 + [False, True] * 3, strict=True):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) * scaler.get_scale()
            model.weight.grad += gradient
            if bad is not None:  # the last element of one parameter or another: looking at the first is not enough
                next(places).grad.view(-1)[-1] = bad
            before = _weights(model)
            if explicit:
                scaler.unscale_(optimizer)
            stepped = scaler.step(optimizer)
            scaler.update()
            steps = optimizer.state[model.weight].get("step", 0)
            moved = not torch.equal(before, _weights(model))
            said = None if stepped is None else bool(stepped)
            log.append([moved, int(steps), said, float(scaler.get_scale())])
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
        drawn = random.Random(seed)
        n = drawn.choice((3, 4, 5))
        settings = {
            "init_scale": 2.0 ** drawn.randrange(5, 9),
            "growth_factor": drawn.choice((2.0, 4.0)),
            "backoff_factor": drawn.choice((0.25, 0.125)),
            "growth_interval": n,
        }
        steps = "g" * n + "g" * (n - 1) + "b" + "g" * n + "g" * (n + 1)
        model, optimizer, _ = _toy(torch.optim.SGD, lr=0.0)
        scaler = scaler_class(**settings)
        scales = []
        for good in steps:
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, 1.0 if good == "g" else float("inf"))
            scaler.step(optimizer)
            scaler.update()
            scales.append(float(scaler.get_scale()))
        kind = type(scaler.get_scale()).__name__
        return {"scales": scales, "steps": steps, "settings": settings, "kind": kind}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["kind"] != "float":
            return f"get_scale() returns a {seen['kind']}; a float is wanted."
        if seen["scales"] == expected["scales"]:
            return None
        pairs = zip(seen["scales"], expected["scales"], strict=True)
        i, got, want = next((i, got, want) for i, (got, want) in enumerate(pairs) if got != want)
        settings = ", ".join(f"{name}={value:g}" for name, value in expected["settings"].items())
        return (
            f"{settings}: after the steps {expected['steps'][: i + 1]} (g good, b bad) the scale is {got:g}; "
            f"it should be {want:g}."
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


class _Roots(TorchDispatchMode):
    """Notes the dtype of what backward passes start from: autograd makes a one of its kind."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.ones_like.default and args[0].dim() == 0 and args[0].is_floating_point():
            self.dtypes.add(str(args[0].dtype).removeprefix("torch."))
        return func(*args, **(kwargs or {}))


def _one_loss(seed: int, train_step: Callable[..., Tensor], dtype: torch.dtype) -> Evidence:
    """Return the model's outputs, the gradient that comes back to them, and the loss that `train_step` returns."""
    model, optimizer, x, y = _setting(seed)
    caught: dict[str, Any] = {}

    def keep(_: nn.Module, __: Any, logits: Tensor) -> None:
        if logits.requires_grad:
            caught["dtype"] = str(logits.dtype).removeprefix("torch.")
            caught["logits"] = logits.detach().cpu().double().tolist()
            logits.register_hook(lambda gradient: caught.update(gradient=gradient.detach().cpu().double().tolist()))

    model.register_forward_hook(keep)
    with _Roots() as roots:
        loss = train_step(model, optimizer, _scaler(dtype), x, y, dtype, CLIP_OFF)
    return {
        "dtype": caught.get("dtype"),
        "logits": caught.get("logits"),
        "gradient": caught.get("gradient"),
        "labels": y.tolist(),
        "roots": sorted(roots.dtypes),
        "loss": torch.as_tensor(loss).detach().item(),
        "kind": [
            type(loss).__name__,
            str(getattr(loss, "dtype", "")).removeprefix("torch."),
            len(getattr(loss, "shape", ())),
            bool(getattr(loss, "requires_grad", False)),
        ],
    }


def _loss_error(one: Evidence) -> float:
    """Return how far the returned loss is from cross-entropy in FP64 of the same outputs."""
    true = F.cross_entropy(torch.tensor(one["logits"]).double(), torch.tensor(one["labels"])).item()
    return abs(one["loss"] - true) / true


def _gradient_error(one: Evidence) -> float:
    """Return how far the gradient at the outputs is from that in FP64, up to the scale of the loss.

    The largest relative error of an entry tells apart a right gradient that was rounded once and one that was computed
    in the outputs' own format: softmax has rounded logarithms in its exponent there.
    """
    labels = F.one_hot(torch.tensor(one["labels"]), 10).bool()
    shares = torch.tensor(one["logits"]).double().softmax(1)
    right, seen = shares - labels.double(), torch.tensor(one["gradient"]).double()
    scale = (seen * right).sum() / right.square().sum()
    looked_at = ~labels & (shares > 0.01)
    return ((seen / scale - right).abs() / shares)[looked_at].max().item()


class LossInFp32(Check):
    """The loss that goes back through the model is computed in FP32, and returned, detached."""

    points = 1
    hint = (
        "cross_entropy(logits.float(), labels) computes the loss in FP32, inside the autocast block or after it; "
        "call backward() on that loss, and return loss.detach()."
    )

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        return {  # three batches: rounding may hide by chance in one
            name: [_one_loss(seed + batch, train_step, dtype) for batch in range(3)]
            for name, dtype in PRECISIONS.items()
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in PRECISIONS:
            wrong = LossInFp32._wrong(seen[name])
            if wrong:
                return f"dtype={name}: {wrong}"
        return None

    @staticmethod
    def _wrong(batches: list[Evidence]) -> str | None:
        if any(one["logits"] is None or one["gradient"] is None for one in batches):
            return "no gradient came back to what model(images) returned. Is the model called, and backward() after it?"
        roots = {root for one in batches for root in one["roots"]} - {"float32"}
        if roots:
            return f"backward() starts from a loss in {', '.join(sorted(roots))}; it should be float32."
        error, rounding = max(map(_gradient_error, batches)), ROUNDING[batches[0]["dtype"]]
        if not error <= rounding:
            return (
                f"the gradient of the outputs is off by {error:.1e} (relative), and rounding explains {rounding:.1e}. "
                "Is the loss that you call backward() on cross-entropy, computed in FP32?"
            )
        error = max(map(_loss_error, batches))
        if not error <= 1e-5:
            return (
                f"the loss returned is off by {error:.1e} (relative) from cross-entropy in FP32 of the same logits. "
                "Was it computed in 16 bit, or returned multiplied by the scale?"
            )
        kind, dtype, dimensions, graph = batches[0]["kind"]
        if [kind, dtype, dimensions, graph] != ["Tensor", "float32", 0, False]:
            with_graph = ", with a graph" if graph else ""
            of = f" of {dtype} with {dimensions} dimensions{with_graph}" if dtype else ""
            return f"train_step returned a {kind}{of}; return loss.detach(), a float32 Tensor without dimensions."
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
            moved[str(max_norm)] = (_weights(model) - before).tolist()
        return {"moved": moved}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for max_norm, right in expected["moved"].items():
            got, want = (torch.tensor(moved).norm().item() for moved in (seen["moved"][max_norm], right))
            if not _close(got, want, 0.02):
                return (
                    f"max_norm={max_norm}, learning rate 1, scale 1024: the weights moved by {got:.4g}; the reference "
                    f"moves them by {want:.4g} ({got / want:.3g}x). "
                    "Was the norm of the gradient clipped, and the gradient unscaled before that?"
                )
        unclipped, clipped = (F.normalize(torch.tensor(seen["moved"][str(m)]), dim=0) for m in (CLIP_OFF, 0.05))
        if not (clipped - unclipped).norm() <= 0.05:
            return (
                "Clipped, the weights move as far as they should, and not in the direction that they take unclipped. "
                "Clipping the norm over all parameters multiplies every gradient by the same number."
            )
        return None


class StepsInARow(Check):
    """Three steps through a scaler, an overflow in the second, end where the reference ends."""

    points = 1
    hint = "Each step: zero_grad, forward, scaled backward, unscale_, clip, scaler.step, scaler.update."

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        return {name: StepsInARow._three_steps(seed, train_step, PRECISIONS[name]) for name in ("fp16", "bf16")}

    @staticmethod
    def _three_steps(seed: int, train_step: Callable[..., Tensor], dtype: torch.dtype) -> list[list[float]]:
        """Return how far the weights moved in each step, and the scale after it."""
        model, optimizer, x, y = _setting(seed, lr=0.05)
        scaler = torch.amp.GradScaler(pick_device().type, init_scale=2.0**10)
        log = []
        for step in range(3):
            before = _weights(model)
            images = x.clone()
            if step == 1:
                images[0, 0, 0, 0] = float("inf")
            train_step(model, optimizer, scaler, images, y, dtype, 1.0)
            for layer in model.modules():  # the bad image has spoilt BatchNorm's running statistics, not the weights
                if isinstance(layer, nn.BatchNorm2d):
                    layer.reset_running_stats()
            log.append([(_weights(model) - before).norm().item(), float(scaler.get_scale())])
        return log

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        ways = (
            "Compare the first step with the contract: forward, backward, unscale_, clip, step.",
            "The gradient held inf or NaN: the step must go through scaler.step, which skips it.",
            "Were the old gradients cleared (zero_grad) before the new ones came?",
        )
        for name, log in expected.items():
            for i, (got, want) in enumerate(zip(seen[name], log, strict=True)):
                where = f"dtype={name} with a scaler, step {i + 1}"
                if not _close(got[0], want[0], 0.02):
                    return f"{where}: the weights moved by {got[0]:.4g}; the reference: {want[0]:.4g}. {ways[i]}"
                if got[1] != want[1]:
                    return f"{where}: the scale is then {got[1]:g}, not {want[1]:g}. Was scaler.update() called?"
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


class _Convolutions(TorchDispatchMode):
    """Notes the dtypes of all convolutions in backward passes, and their largest finite gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[str] = set()
        self.largest_gradient = 0.0
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution_backward.default:
            gradient = args[0]
            self.calls += 1
            self.dtypes.add(str(gradient.dtype).removeprefix("torch."))
            largest = gradient.abs().max().item()
            if largest < float("inf"):
                self.largest_gradient = max(self.largest_gradient, largest)
        return func(*args, **(kwargs or {}))


def _result(train: Callable[..., dict], *args: Any, **kwargs: Any) -> dict:
    """Call `train` and see that it returns what the contract names."""
    result = train(*args, **kwargs)
    keys = ("model", "accuracy", "peak_bytes", "step_seconds")
    missing = [key for key in keys if not isinstance(result, dict) or key not in result]
    if missing:
        raise ValueError(f"train() must return a dict with {', '.join(keys)}; missing: {', '.join(missing)}")
    return result


class MemoryFalls(Check):
    """The peak reported is the peak measured, and 16-bit training holds less than FP32 does."""

    points = 1
    hint = "Measure one whole train_step on a batch of 64 with MemoryMeter(model, optimizer); report meter.peak_bytes."

    @staticmethod
    def probe(seed: int, train: Callable[..., dict], train_step: Callable[..., Tensor]) -> Evidence:
        seen = {}
        data = digits(pick_device())
        for name, dtype in PRECISIONS.items():
            result = _result(train, name, seed=seed, epochs=1)
            model = result["model"]
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            scaler = _scaler(dtype)
            model.train()
            batch = data.train_x[:64].clone(), data.train_y[:64].clone()
            train_step(model, optimizer, scaler, *batch, dtype, 1.0)  # Adam's state is born here
            with MemoryMeter(model, optimizer) as meter:
                train_step(model, optimizer, scaler, *batch, dtype, 1.0)
            seen[name] = {
                "reported": int(result["peak_bytes"]),
                "measured": meter.peak_bytes,
                "activations": meter.largest["activations"],
                # What a peak may hold on top: the whole data set, if the batch was cut inside the meter.
                "data": sum(tensor.nbytes for tensor in data),
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in PRECISIONS:
            got, want = seen[name], expected[name]
            if got["activations"] > 1.1 * want["activations"]:
                why = (
                    "Is it SmallCNN(width=16)?" if name == "fp32" else "Does the forward pass run under autocast, once?"
                )
                return (
                    f"{name}: your train_step keeps {got['activations']:,} bytes of activations for the backward pass; "
                    f"the reference keeps {want['activations']:,}. {why}"
                )
            if not _close(got["measured"], want["measured"], 0.1):
                return f"{name}: your step peaks at {got['measured']:,} bytes, the reference at {want['measured']:,}."
            low, high = want["measured"], want["measured"] + want["data"]
            if not 0.9 * low <= got["reported"] <= 1.1 * high:
                return (
                    f"{name}: train() reports a peak of {got['reported']:,} bytes; a step at batch 64 peaks at {low:,} "
                    f"(up to {high:,} with the whole data set). Measure a whole step of the model that trains."
                )
        return None


class AccuracyHolds(Check):
    """All three precisions learn the digits as FP32 does, each really trained in its own precision."""

    points = 1
    hint = (
        "digits(device), batches of 64, AdamW with lr 3e-3, three epochs; a loss scaler for FP16 only; "
        "model.eval() and torch.no_grad() for the accuracy."
    )

    @staticmethod
    def probe(seed: int, train: Callable[..., dict], train_step: Callable[..., Tensor]) -> Evidence:
        data = digits(pick_device())
        seen: Evidence = {"digits": fingerprint(*data)}
        for name in PRECISIONS:
            start = time.perf_counter()
            with _Convolutions() as convolutions:
                result = _result(train, name, seed=seed)
            wall = time.perf_counter() - start
            model = result["model"].eval()
            with torch.no_grad():
                true = (plain(model(data.test_x)).argmax(1) == data.test_y).float().mean().item()
            layers = sum(isinstance(layer, nn.Conv2d) for layer in model.modules())
            seen[name] = {
                "reported": float(result["accuracy"]),
                "measured": true,
                "dtypes": sorted(convolutions.dtypes),
                "largest_gradient": convolutions.largest_gradient,
                "step_seconds": float(result["step_seconds"]),
                "average_seconds": wall / max(1, convolutions.calls // layers),
            }
        return seen

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        # Three epochs end between 87 and 99 %, depending on the order of the images; untrained models near 10 %.
        floor = min(0.8, expected["fp32"]["measured"] - 0.15)
        if seen["digits"] != expected["digits"]:
            return OTHER_DATA
        for name in PRECISIONS:
            got, want = seen[name], expected[name]
            if got["dtypes"] != want["dtypes"]:
                ran = ", ".join(got["dtypes"]) or "nothing"
                return f"train('{name}') trained in {ran}; it should train in {want['dtypes'][0]}."
            if not got["measured"] >= floor:
                return (
                    f"train('{name}') gets {got['measured']:.1%} of the test images right, at least {floor:.0%} is due."
                )
            if not abs(got["reported"] - got["measured"]) <= 0.005:
                return f"train('{name}') reports {got['reported']:.1%}, but its model reaches {got['measured']:.1%}."
            seconds, average = got["step_seconds"], got["average_seconds"]
            if not 0 < seconds < 10 * average:
                clock = f"{average:.3g} on average by the clock of the check"
                return f"train('{name}') reports step_seconds of {seconds:.3g}, {clock}."
        if seen["fp16"]["largest_gradient"] < 8 * seen["fp32"]["largest_gradient"]:
            return "train('fp16') trained without loss scaling: its gradients are no larger than those of FP32."
        return None


PARTS = (
    Part("x1.scaler", ("DynamicLossScaler",), (GradientIsUnscaled, OverflowSkipsAndBacksOff, ScaleGrows)),
    Part(
        "x1.step",
        ("train_step",),
        (ForwardInLowPrecision, LossInFp32, ClipsTrueGradient, StepsInARow, SixteenBitsWithoutScaler),
    ),
    Part("x1.compare", ("train", "train_step"), (MemoryFalls, AccuracyHolds)),
)
