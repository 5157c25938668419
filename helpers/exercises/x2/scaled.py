"""Check of part 3: a step with a loss scaler and gradient clipping."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from .activations import too_many_activations
from .spy import (
    CLASSES,
    FEATURES,
    FP32,
    HIDDEN,
    OLD_GRADIENTS,
    Spy,
    leave_gradients,
    rows_of_classes,
    update_since,
    weights,
    wrong_mode,
    wrong_rows,
    wrong_update,
)


@dataclass(frozen=True)
class _Case:
    micro_batch: int
    max_norm: float
    old_gradients: bool = False
    overflow: bool = False  # a row of one micro-batch holds inf


CASES = {"clipping": _Case(64, 0.05), "no clipping": _Case(48, 1e6), "overflow": _Case(64, 0.05, overflow=True)}


class _LoggingScaler(torch.amp.GradScaler):
    """PyTorch's scaler on the CPU, with a log of what is asked of it after the backward passes."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=1024.0)
        self.log: list[str] = []

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.log.append("unscale_")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        self.log.append("step")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        self.log.append("update")
        super().update(new_scale)


def _one_step(scaled_step: Any, seed: int, case: _Case) -> Evidence:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    optimizer = torch.optim.SGD([{"params": list(layer.parameters())} for layer in (model[0], model[2])], lr=1.0)
    x, y = rows_of_classes(200)
    if case.overflow:
        x[100] = torch.inf  # the first layer adds and subtracts it
    given = x.clone(), y.clone()
    scaler, spy = _LoggingScaler(), Spy(model, optimizer)
    if case.old_gradients:
        leave_gradients(model)
    before = weights(model)
    with MemoryMeter(model, optimizer) as meter:
        returned = scaled_step(model, optimizer, scaler, x.float(), y, case.micro_batch, case.max_norm)
    return {
        "moved": update_since(before, model),
        "log": scaler.log,
        "rows": spy.rows,
        "first": spy.first,
        "returned": type(returned).__name__,
        "scale": scaler.get_scale(),
        "modes": spy.modes,
        "kept": torch.equal(x, given[0]) and torch.equal(y, given[1]),
        "activations": meter.largest["activations"],
    }


class ClipsTheWholeGradientOnce(Check):
    """The true gradient of the whole batch is clipped: unscaled once, after the last micro-batch."""

    points = 1
    hint = (
        "scale() and backward() inside the loop, each piece weighed by its rows; unscale_, clip_grad_norm_, step and "
        "update once, after it. Clipping before unscale_ clips a gradient that is 1024 times too long here."
    )

    @staticmethod
    def probe(seed: int, scaled_step: Any) -> Evidence:
        seen: Evidence = {name: _one_step(scaled_step, seed, case) for name, case in CASES.items()}
        old = _Case(48, 1e6, old_gradients=True)
        return seen | {"old gradients": _one_step(scaled_step, seed, old)["moved"]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in CASES:
            got, want = seen[case], expected[case]
            wrong = wrong_rows(got, want)
            if wrong:
                return f"{case}: {wrong}"
            for call in ("unscale_", "step", "update"):
                if got["log"].count(call) != 1:
                    return f"{case}: scaler.{call} was called {got['log'].count(call)} times; once a step is right."
            if got["log"] != ["unscale_", "step", "update"]:
                return f"{case}: the scaler was asked to {', '.join(got['log'])}, in this order."
            wrong = wrong_update(got["moved"], want["moved"], FP32) or too_many_activations(
                got["activations"], want["activations"]
            )
            if wrong:
                return f"{case}: {wrong}"
            if got["scale"] != want["scale"]:
                return f"{case}: the scale is then {got['scale']:g}; it should be {want['scale']:g}."
            if not got["kept"]:
                return f"{case}: x or y has changed; leave the batch as it was."
            wrong = wrong_mode(got["modes"])
            if wrong:
                return f"{case}: {wrong}"
            if got["returned"] != "NoneType":
                return f"{case}: something was returned; this step returns nothing."
        if wrong_update(seen["old gradients"], expected["old gradients"], FP32):
            return OLD_GRADIENTS
        return None


SCALED = (ClipsTheWholeGradientOnce,)
