"""Checks of part 3: the comparison of three precisions."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ...core.data import digits
from ...core.device import pick_device
from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.fingerprint import OTHER_DATA, fingerprint
from ..probing.plain import plain
from .shared import PRECISIONS, close, scaler_for


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


class _Seeded(TorchDispatchMode):
    """Notes the weight that the first convolution of training meets, and a sum of the images of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight: float | None = None
        self.images: list[float] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default and args[0].shape[1] == 1:  # the layer that sees the images
            images, weight = (tensor.detach().cpu().double() for tensor in args[:2])
            if self.weight is None:
                self.weight = weight.abs().sum().item()
            # Weighted by place, so that the same images in another order have another sum.
            self.images.append(images.flatten(1).sum(1).mul(torch.arange(1, 1 + len(images))).sum().item())
        return func(*args, **(kwargs or {}))


def _seeded(train: Callable[..., dict], seed: int) -> list:
    """Return the first weights and the order of the images in an epoch that `train` makes of a seed."""
    with _Seeded() as noted:
        _result(train, "fp32", seed=seed, epochs=1)
    return [noted.weight, noted.images]


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
            scaler = scaler_for(dtype)
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
            if not close(got["measured"], want["measured"], 0.1):
                return f"{name}: your step peaks at {got['measured']:,} bytes, the reference at {want['measured']:,}."
            low, high = want["measured"], want["measured"] + want["data"]
            if not 0.9 * low <= got["reported"] <= 1.1 * high:
                return (
                    f"{name}: train() reports a peak of {got['reported']:,} bytes; a step at batch 64 peaks at {low:,} "
                    f"(up to {high:,} with the whole data set). Measure a whole step of the model that trains."
                )
        return None


class AccuracyHolds(Check):
    """All three precisions learn the digits as FP32 does, each really trained in its own, as the seed says."""

    points = 1
    hint = (
        "digits(device), batches of 64, AdamW with lr 3e-3, three epochs; a loss scaler for FP16 only; "
        "model.eval() and torch.no_grad() for the accuracy.\n"
        "`torch.manual_seed(seed)` before anything random is drawn: the model, and the order of the images."
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
        seen["seeds"] = [_seeded(train, of) for of in (seed, seed, seed + 1)]
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
        for what, first, again, other in zip(("initial weights", "order of the images"), *seen["seeds"], strict=True):
            if first != again:
                return f"train('fp32') twice with one seed: not the same {what}."
            if first == other:
                return f"train('fp32') with two seeds: the same {what} in both."
        return None


COMPARE = (MemoryFalls, AccuracyHolds)
