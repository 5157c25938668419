"""Checks of part 2: an accumulated step with one loss scaler, two optimizers, clipping and a measure of noise."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

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

BOTH = ["unscale_ 0", "unscale_ 1", "step 0", "step 1", "update"]


@dataclass(frozen=True)
class _Case:
    """What an answer is called with.

    Attributes:
        overflow: the parameter whose gradient holds inf after a micro-batch; "" where there is none.
        at: the number of that micro-batch, from 1.
        opposite: the next micro-batch adds -inf, which makes it NaN.
        momentum: of both optimizers, so that a step without a gradient moves, too.
        grows: whether the step's update of the scaler doubles the scale.
    """

    micro_batch: int
    max_norm: float
    old_gradients: bool = False
    overflow: str = ""
    at: int = 2
    opposite: bool = False
    momentum: float = 0.0
    steps: int = 1
    grows: bool = False


CASES = {
    "clipping": _Case(64, 0.05),
    "no clipping": _Case(48, 1e6),
    "one micro-batch": _Case(256, 0.05),
    "the scale grows in this step": _Case(64, 0.05, grows=True),
}
OVERFLOWS = {
    "the first optimizer's gradient overflows": _Case(64, 0.05, overflow="0.bias", momentum=0.9, steps=3),
    "a gradient in the first optimizer's first group overflows": _Case(
        64, 0.05, overflow="0.weight", momentum=0.9, steps=3
    ),
    "the second optimizer's gradient overflows": _Case(64, 0.05, overflow="2.bias", momentum=0.9, steps=3),
    "the last micro-batch overflows": _Case(64, 0.05, overflow="2.weight", at=4, momentum=0.9, steps=3),
    "the second optimizer's gradient is inf - inf": _Case(
        64, 0.05, overflow="2.bias", opposite=True, momentum=0.9, steps=3
    ),
}


class _LoggingScaler(torch.amp.GradScaler):
    """PyTorch's scaler on the CPU, with a log of what is asked of it after the backward passes."""

    def __init__(self, optimizers: list[torch.optim.Optimizer], growth_interval: int) -> None:
        super().__init__("cpu", init_scale=1024.0, backoff_factor=0.25, growth_interval=growth_interval)
        self.log: list[str] = []
        self._numbers = {id(optimizer): number for number, optimizer in enumerate(optimizers)}

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.log.append(f"unscale_ {self._numbers.get(id(optimizer), 'of an unknown one')}")
        super().unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        self.log.append(f"step {self._numbers.get(id(optimizer), 'of an unknown one')}")
        return super().step(optimizer, *args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        self.log.append("update")
        super().update(new_scale)


def _overflow(at: int, opposite: bool) -> Callable[[Tensor], Tensor]:
    """Return a hook that makes gradient number `at` that it sees inf, and the next one -inf if `opposite`."""
    seen = 0

    def hook(gradient: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        value = {at: float("inf"), at + 1: float("-inf") if opposite else None}.get(seen)
        return gradient if value is None else torch.full_like(gradient, value)

    return hook


def _watch_backward(model: nn.Module) -> list[float]:
    """Return a list that gets the norm of the outputs' gradient in each backward pass."""
    norms: list[float] = []

    def fed(_: nn.Module, __: tuple[Tensor, ...], outputs: Tensor) -> None:
        if outputs.requires_grad:
            outputs.register_hook(lambda gradient: norms.append(gradient.norm().item()))

    model.register_forward_hook(fed)
    return norms


def _run(scaled_step: Any, seed: int, case: _Case) -> Evidence:
    """Take the steps of a case; a gradient overflows in the second step of three."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    first = [{"params": [model[0].weight]}, {"params": [model[0].bias]}]
    settings = {"lr": 1.0, "momentum": case.momentum}
    optimizers = [torch.optim.SGD(first, **settings), torch.optim.SGD(model[2].parameters(), **settings)]
    x, y = rows_of_classes(200)
    x = x.float()
    given = x.clone(), y.clone()
    scaler, spy = _LoggingScaler(optimizers, 1 if case.grows else 2000), Spy(model, optimizers[0])
    backward = _watch_backward(model)
    if case.old_gradients:
        leave_gradients(model)
    moved, norms, scales, logs = [], [], [], []
    for step in range(case.steps):
        hook = None
        if case.overflow and step == 1:
            hook = model.get_parameter(case.overflow).register_hook(_overflow(case.at, case.opposite))
        before = weights(model)
        with MemoryMeter(model, optimizers) as meter:
            try:
                returned = scaled_step(model, optimizers, scaler, x, y, case.micro_batch, case.max_norm)
            except RuntimeError:
                if not logs or "update" in logs[-1]:
                    raise
                break  # PyTorch's scaler refuses a step after one without an update
        if hook:
            hook.remove()
        moved.append(update_since(before, model))
        pair = isinstance(returned, tuple | list) and len(returned) == 2
        norms.append([_noted(figure) for figure in returned] if pair else None)
        scales.append(scaler.get_scale())
        logs.append(scaler.log)
        scaler.log = []
    return {
        "moved": moved,
        "norms": norms,
        "scales": scales,
        "logs": logs,
        "rows": spy.rows,
        "first": spy.first,
        "modes": spy.modes,
        "backward": backward,
        "kept": torch.equal(x, given[0]) and torch.equal(y, given[1]),
        "activations": meter.largest["activations"],
    }


def _wrong_backward(got: list[float], want: list[float]) -> str | None:
    """Say that the backward passes are not one for each micro-batch, or do not start from scaled losses."""
    if len(got) != len(want):
        return (
            f"{len(got)} backward passes went through the model's outputs; {len(want)} micro-batches need {len(want)}. "
            "What the last micro-batch added to .grad is its own gradient."
        )
    for mine, right in zip(got, want, strict=True):
        if not mine >= right / 2:  # weights that come after backward() make it larger
            return (
                f"a backward pass starts from a gradient of norm {mine:.3g} at the outputs; from the scaled loss it is "
                f"{right:.3g} or more. In FP16 an unscaled gradient underflows: call backward() on scaler.scale(loss)."
            )
    return None


def _noted(figure: Any) -> Evidence:
    """Return what is to be known of one figure that a step returned."""
    attached = bool(getattr(figure, "requires_grad", False))
    finite = None if figure is None else bool(torch.as_tensor(figure).detach().isfinite().all())
    return {"attached": attached, "finite": finite, "value": float(figure) if finite and not attached else None}


def _wrong_figures(got: list[Evidence] | None, want: list[Evidence]) -> str | None:
    """Say what is wrong with the pair that a step returned: the norm, and the mean squared norm."""
    if got is None:
        return "return a pair: the norm of the true gradient, and the mean squared norm of micro-batches."
    (norm, right_norm), (squares, right_squares) = zip(got, want, strict=True)
    wrong = _wrong_figure("norm", norm, right_norm)
    if wrong:
        return wrong
    if right_norm["finite"] and not _near(norm, right_norm):
        return (
            f"the returned norm is {norm['value']:.5g}; that of the true gradient over the parameters of both "
            f"optimizers, before clipping, is {right_norm['value']:.5g}."
        )
    wrong = _wrong_figure("mean squared norm", squares, right_squares)
    if wrong:
        return wrong
    if right_squares["finite"] and not _near(squares, right_squares):
        return (
            f"the mean squared norm of the micro-batches' gradients is {squares['value']:.5g}; it should be "
            f"{right_squares['value']:.5g}. (The whole gradient's squared norm is {right_norm['value'] ** 2:.5g}.) Is "
            "each micro-batch's gradient unscaled, that of its own rows alone, and weighted by its rows?"
        )
    return None


def _wrong_figure(name: str, got: Evidence, want: Evidence) -> str | None:
    if got["finite"] is None:
        return f"the {name} is None; return it as a number."
    if got["attached"]:
        return f"the returned {name} carries a graph; return it detached."
    if want["finite"] != got["finite"]:
        return f"the returned {name} is {'' if got['finite'] else 'not '}finite, unlike the gradient's."
    return None


def _near(got: Evidence, want: Evidence) -> bool:
    return abs(got["value"] - want["value"]) <= 1e-3 * abs(want["value"])


class ClipsTheJointGradientOnce(Check):
    """The true gradient is clipped by its joint norm over both optimizers' parameters, and its noise is measured."""

    points = 1
    hint = (
        "scale() and backward() inside the loop, each micro-batch weighted by its rows; the rest once, after it.\n"
        "Unscale both before clipping: a norm over one unscaled and one scaled half means nothing.\n"
        "`.grad` is a sum. What did the last micro-batch add to it, and by which factors does that differ from its own "
        "gradient?"
    )

    @staticmethod
    def probe(seed: int, scaled_step: Any) -> Evidence:
        seen: Evidence = {name: _run(scaled_step, seed, case) for name, case in CASES.items()}
        old = _Case(48, 1e6, old_gradients=True)
        return seen | {"old gradients": _run(scaled_step, seed, old)["moved"][0]}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case in CASES:
            got, want = seen[case], expected[case]
            wrong = wrong_rows(got, want) or _wrong_backward(got["backward"], want["backward"])
            if wrong:
                return f"{case}: {wrong}"
            log = got["logs"][0]
            for call in BOTH:
                if log.count(call) != 1:
                    return f"{case}: scaler.{call} was called {log.count(call)} times (0 and 1 number the optimizers)."
            if [call.partition(" ")[0] for call in log] != [call.partition(" ")[0] for call in BOTH]:
                return (
                    f"{case}: the scaler's methods were called in an order other than unscale_ both, step both, update."
                )
            wrong = wrong_update(got["moved"][0], want["moved"][0], FP32)
            if wrong and math.hypot(*got["moved"][0]) < 0.01 * math.hypot(*want["moved"][0]):
                wrong += " An update this short: was the gradient clipped before it was unscaled?"
            elif wrong:
                wrong += " Is it clipped once, by one norm over the parameters of both optimizers?"
            wrong = wrong or too_many_activations(got["activations"], want["activations"])
            if wrong:
                return f"{case}: {wrong}"
            wrong = _wrong_figures(got["norms"][0], want["norms"][0])
            if wrong:
                after = " Is it divided by the scale that update() leaves?" if CASES[case].grows else ""
                return f"{case}: {wrong}{after}"
            if got["scales"] != want["scales"]:
                return (
                    f"{case}: the scale is then {got['scales'][0]:g}; it should be {want['scales'][0]:g}. Only "
                    "scaler.update() may change it."
                )
            if not got["kept"]:
                return f"{case}: x or y has changed; leave the batch as it was."
            wrong = wrong_mode(got["modes"])
            if wrong:
                return f"{case}: {wrong}"
        if wrong_update(seen["old gradients"], expected["old gradients"], FP32):
            return OLD_GRADIENTS
        return None


class BothStepOrNeither(Check):
    """If a micro-batch makes either optimizer's gradient overflow, neither steps, and the scale falls once."""

    points = 1
    hint = (
        "GradScaler decides for each optimizer separately. What do you have after clipping that knows about both?\n"
        "update() belongs to every step, even one that is skipped."
    )

    @staticmethod
    def probe(seed: int, scaled_step: Any) -> Evidence:
        return {name: _run(scaled_step, seed, case) for name, case in OVERFLOWS.items()}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        for case, want in expected.items():
            got = seen[case]
            for step in range(3):
                where = f"{case}, step {step + 1} of 3"
                wrong = wrong_update(got["moved"][step], want["moved"][step], FP32)
                if wrong and step == 1:
                    return f"{where}: the weights moved. Neither optimizer may step, not even by its momentum."
                wrong = wrong or _wrong_figures(got["norms"][step], want["norms"][step])
                if wrong and step == 0:
                    wrong = f"{wrong} Nothing has overflowed yet: see clips_the_joint_gradient_once first."
                if wrong:
                    return f"{where}: {wrong}"
                if got["logs"][step].count("update") != 1:
                    times = got["logs"][step].count("update")
                    return (
                        f"{where}: scaler.update was called {times} times; call it once in each step, even a skipped "
                        "one."
                    )
                if got["scales"][step] != want["scales"][step]:
                    scale, right = got["scales"][step], want["scales"][step]
                    return (
                        f"{where}: the scale is then {scale:g}; it should be {right:g}. Did the scaler see the "
                        "overflow?"
                    )
        return None


SCALED = (ClipsTheJointGradientOnce, BothStepOrNeither)
