"""Check of a cured program: an evaluation that reads one value, runs whole batches and records nothing."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...core.device import pick_device
from ..base import Check, Evidence

Batches = list[tuple[Tensor, Tensor]]
Accuracy = Callable[[nn.Module, Batches], float]
_READS = ("item", "tolist", "numpy", "cpu", "equal", "allclose", "nonzero", "argwhere", "masked_select", "unique")
_READS += ("__bool__", "__int__", "__float__", "__index__", "__array__", "__format__", "__repr__")


class _Reads(TorchFunctionMode):
    """Counts how often Python reads the value of a tensor."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.count += name in _READS or (name == "to" and "cpu" in map(str, [*args[1:], *(kwargs or {}).values()]))
        self.count += name == "__getitem__" and getattr(args[1], "dtype", None) == torch.bool  # how many are chosen?
        return func(*args, **(kwargs or {}))


class _Watched(nn.Module):
    """A classifier that notes which rows it is given, and whether autograd records."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.layer.weight)
        self.rows: list[int] = []
        self.recorded = 0
        self.modes: set[bool] = set()  # whether the model was in training mode

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, width) to logits (B, width)."""
        logits = self.layer(images)
        self.rows.append(len(images) if images.dim() == 2 else 1)
        self.recorded += logits.requires_grad
        self.modes.add(self.training)
        return logits


def observe(seed: int, accuracy: Accuracy) -> Evidence:
    """Note what `accuracy` makes of batches of several sizes, in the last of which nearly everything is right."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for rows, share in ((24, 0.3), (24, 0.4), (24, 0.2), (5, 1.0)):
        images = torch.randn(rows, 6, generator=generator)
        labels = images.argmax(1)
        labels[round(share * rows) :] = (labels[round(share * rows) :] + 1) % 6
        batches.append((images.to(pick_device()), labels.to(pick_device())))
    model = _Watched(6).to(pick_device()).eval()
    before = [tensor.clone() for batch in batches for tensor in batch]
    with torch.enable_grad(), _Reads() as reads:  # which puts autograd back afterwards
        answer = accuracy(model, batches)
        autograd = torch.is_grad_enabled()
    with torch.no_grad():
        accuracy(_Watched(6).to(pick_device()).eval(), batches)
        switched_on = torch.is_grad_enabled()
    seen: Evidence = {
        "rows": model.rows,
        "recorded": model.recorded,
        "reads": reads.count,
        "autograd": autograd,
        "switched on": switched_on,
        "modes": sorted({*model.modes, model.training}),
        "same": all(map(torch.equal, before, (tensor for batch in batches for tensor in batch))),
    }
    if isinstance(answer, float | int):
        return {**seen, "share": float(answer)}
    return {**seen, "returned": type(answer).__name__}


class ComputesTheFraction(Check):
    """The result is the fraction of all samples that are correct, whatever the sizes of the batches."""

    hint = "Count correct samples and all samples over all batches; divide once."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "returned" in seen:
            return f"Return a Python number; you return {seen['returned']}. Call .item() once, after the loop."
        if math.isclose(seen["share"], expected["share"], rel_tol=1e-5):
            return None
        return (
            f"{expected['share']:.4f} of the samples are correct; you return {seen['share']:.4f}. Does a small batch "
            "count as much as a large one?"
        )


class RunsWholeBatches(Check):
    """Each batch goes through the model once, as a whole."""

    hint = "One call of the model for each batch: a loop over samples makes each operation tiny."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["rows"] == expected["rows"]:
            return None
        calls, rows = len(seen["rows"]), sum(seen["rows"])
        often = "once" if calls == 1 else f"{calls} times"
        return (
            f"Four batches of {expected['rows']} rows came in; the model was called {often}, with {rows} rows in all."
        )


class ReadsOneValue(Check):
    """Python reads one value at most, after all batches have been queued."""

    hint = (
        "Keep the sum in a tensor. `.item()`, `float()`, `if`, `.tolist()` and `.cpu()` wait for the GPU each time.\n"
        "So do `.nonzero()` and `labels[mask]`: the sizes of their results depend on values."
    )
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["reads"] <= 1:
            return None
        return f"Python read the value of a tensor {seen['reads']} times; once is enough. Keep the count in a tensor."


class RecordsNothing(Check):
    """No backward pass will follow, so autograd records nothing."""

    hint = "with torch.no_grad(): or torch.inference_mode()."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if not seen["recorded"]:
            return None
        calls = "1 call" if seen["recorded"] == 1 else f"{seen['recorded']} calls"
        return f"Autograd recorded {calls} of the model, although no backward pass follows: switch it off."


class LeavesThingsAsTheyAre(Check):
    """The model's mode, the batches and autograd's state are unchanged afterwards."""

    hint = "When a `with` block ends, autograd is as it was before. Do not change the model's mode."
    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["modes"] != expected["modes"]:
            return (
                "The model came in evaluation mode and was in training mode in the call or after it. Leave its mode "
                "alone."
            )
        if not seen["autograd"]:
            return "Autograd is off after the call: the next training step would fail."
        if seen["switched on"]:
            return "Autograd was off before the call and is on after it: restore the state that was there before."
        return None if seen["same"] else "Your function changed the batches. Use operations that return new tensors."


CURE = (ComputesTheFraction, RunsWholeBatches, ReadsOneValue, RecordsNothing, LeavesThingsAsTheyAre)
