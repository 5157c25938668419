"""Check of part 2: which loss the training step sends back, and which it returns."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.models import SmallCNN
from ...meter.operations_seen import OperationWatch
from ..base import Check, Evidence
from ..probing.on_forward import on_forward
from .shared import CLIP_OFF, PRECISIONS, scaler_for, setting

ROUNDING = {"float32": 1e-4, "bfloat16": 2.0**-7, "float16": 2.0**-10}  # of a gradient of this dtype: twice its own


class _Roots(OperationWatch):
    """Notes the dtype of what backward passes start from, and counts conversions of logits to FP32.

    Autograd makes a one of the kind of what it starts from.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.dtypes: set[str] = set()
        self.conversions = 0
        self._shape = shape

    def see(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func is torch.ops.aten.ones_like.default and args[0].dim() == 0 and args[0].is_floating_point():
            self.dtypes.add(str(args[0].dtype).removeprefix("torch."))
        if func is torch.ops.aten._to_copy.default and tuple(args[0].shape) == self._shape:
            self.conversions += args[0].dtype in (torch.float16, torch.bfloat16) and result.dtype == torch.float32


def _watched(scaler: torch.amp.GradScaler | None, roots: _Roots) -> torch.amp.GradScaler | None:
    """Have `scaler` note what it is to scale: its product with the scale is FP32, whatever the loss was."""
    if scaler is None:
        return None
    scale = scaler.scale

    def noted(loss: Tensor) -> Tensor:
        roots.dtypes.add(str(loss.dtype).removeprefix("torch."))
        return scale(loss)

    scaler.scale = noted  # type: ignore[method-assign]
    return scaler


class _Fp32Logits(SmallCNN):
    """A small CNN whose logits are FP32 in every precision, with more digits than 16 bits hold."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 1, H, H) to logits (B, 10)."""
        return super().forward(images) * torch.full((10,), 1.001, device=images.device)


def _one_loss(
    seed: int, train_step: Callable[..., Tensor], dtype: torch.dtype, kind: type[SmallCNN] = SmallCNN
) -> Evidence:
    """Return the model's outputs, the gradient that comes back to them, and the loss that `train_step` returns."""
    model, optimizers, x, y = setting(seed, kind=kind)
    caught: dict[str, Any] = {}

    def keep(_: nn.Module, __: Any, logits: Tensor) -> None:
        if logits.requires_grad:
            caught["dtype"] = str(logits.dtype).removeprefix("torch.")
            caught["logits"] = logits.detach().cpu().double().tolist()
            logits.register_hook(lambda gradient: caught.update(gradient=gradient.detach().cpu().double().tolist()))

    on_forward(model, after=keep)
    images, labels = x.clone(), y.clone()
    with _Roots((len(x), 10)) as roots:
        loss = train_step(model, optimizers, _watched(scaler_for(dtype), roots), x, y, dtype, CLIP_OFF)
    return {
        "dtype": caught.get("dtype"),
        "logits": caught.get("logits"),
        "gradient": caught.get("gradient"),
        "labels": labels.tolist(),
        "kept": torch.equal(x, images) and torch.equal(y, labels) and not x.requires_grad,
        "roots": sorted(roots.dtypes),
        "conversions": roots.conversions,
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
    """Return how far the gradient at the outputs is from that in FP64, up to the loss's scale; inf for its negative.

    The largest relative error of an entry tells apart a right gradient that was rounded once and one that was computed
    in the outputs' own format: softmax has rounded logarithms in its exponent there.
    """
    labels = F.one_hot(torch.tensor(one["labels"]), 10).bool()
    shares = torch.tensor(one["logits"]).double().softmax(1)
    right, seen = shares - labels.double(), torch.tensor(one["gradient"]).double()
    scale = (seen * right).sum() / right.square().sum()
    if scale < 0:
        return float("inf")
    looked_at = ~labels & (shares > 0.01)
    return ((seen / scale - right).abs() / shares)[looked_at].max().item()


class LossInFp32(Check):
    """The loss that is backpropagated through the model is computed in FP32, and returned, detached."""

    points = 1
    hint = (
        "cross_entropy(logits.float(), labels) computes the loss in FP32, inside the autocast block or after it; "
        "call backward() on that loss, and return loss.detach()."
    )

    @staticmethod
    def probe(seed: int, train_step: Callable[..., Tensor]) -> Evidence:
        seen = {  # three batches: rounding may hide by chance in one
            name: [_one_loss(seed + batch, train_step, dtype) for batch in range(3)]
            for name, dtype in PRECISIONS.items()
        }
        kept = {
            f"{name}, logits in FP32": [_one_loss(seed, train_step, dtype, _Fp32Logits)]
            for name, dtype in PRECISIONS.items()
        }
        return seen | kept

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for name in expected:
            wrong = LossInFp32._wrong(seen[name])
            if wrong:
                return f"dtype={name}: {wrong}"
        return None

    @staticmethod
    def _wrong(batches: list[Evidence]) -> str | None:
        if any(one["logits"] is None or one["gradient"] is None for one in batches):
            return "no gradient came back to what model(images) returned. Is the model called, and backward() after it?"
        rows, images = len(batches[0]["logits"]), len(batches[0]["labels"])
        if rows != images:
            return f"the model was called with {rows} rows, but the batch has {images}."
        if not all(one["kept"] for one in batches):
            return "train_step changed the images or the labels that it was given; they are the caller's."
        roots = {root for one in batches for root in one["roots"]} - {"float32"}
        if roots:
            return f"backward() starts from a loss in {', '.join(sorted(roots))}; it should be float32."
        conversions = max(one["conversions"] for one in batches)
        if conversions > 1:
            return f"logits are converted to FP32 {conversions} times in a step. Convert them once, and keep the loss."
        error, rounding = max(map(_gradient_error, batches)), ROUNDING[batches[0]["dtype"]]
        if not error <= rounding:
            return (
                f"the gradient of the outputs is off by {error:.1e} (relative), but rounding explains only "
                f"{rounding:.1e}. Is the loss that you call backward() on cross-entropy, computed in FP32?"
            )
        error = max(map(_loss_error, batches))
        if not error <= 1e-5:
            return (
                f"the loss returned is off by {error:.1e} (relative) from cross-entropy in FP32 of the same logits. "
                "Was it computed in 16 bits, or returned multiplied by the scale?"
            )
        kind, dtype, dimensions, graph = batches[0]["kind"]
        if [kind, dtype, dimensions, graph] != ["Tensor", "float32", 0, False]:
            with_graph = ", with a graph" if graph else ""
            of = f" of {dtype} with {dimensions} dimensions{with_graph}" if dtype else ""
            return f"train_step returned a {kind}{of}; return loss.detach(), a float32 scalar tensor."
        return None
