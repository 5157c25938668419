"""Checks of part 1: the loss scaler. Gradients are fed by hand, so that every branch is met."""

import itertools
import random
from typing import Any

import torch
from torch import Tensor, nn

from ...core.device import pick_device
from ..base import Check, Evidence
from .shared import close, weights


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
            before = weights(model)
            scaled = scaler.scale(loss)
            seen[f"{how}_loss"] = [scaled.item(), loss.item()]
            seen["attached"] = scaled.requires_grad
            if not scaled.requires_grad:
                return seen
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
            seen[f"{how}_moved"] = (weights(model) - before).norm().item()
        return seen | {"in_a_row": GradientIsUnscaled._in_a_row(seed, scaler_class)}

    @staticmethod
    def _in_a_row(seed: int, scaler_class: Any) -> list[list[float]]:
        """Return, of steps with and without unscale_() at a scale that moves, how far weights went, and that scale.

        Each gradient is `scale` times ones, whatever the scale is by then: a right step moves each weight by 1.
        """
        drawn = random.Random(seed + 1)
        explicit = [True, False] * 4
        drawn.shuffle(explicit)
        bad = drawn.sample(range(1, 7), 2)
        model, optimizer, _ = _toy(torch.optim.SGD, lr=1.0)
        scaler = scaler_class(init_scale=512.0, backoff_factor=0.25, growth_interval=2)
        log = []
        for i, first in enumerate(explicit):
            scale = float(scaler.get_scale())
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, float("inf") if i in bad else scale)
            before = weights(model)
            if first:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            log.append([(weights(model) - before).abs().mean().item(), scale, int(first)])
            with torch.no_grad():  # inf would stay
                for parameter in model.parameters():
                    parameter.zero_()
        return log

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        scaled, loss = seen["explicit_loss"]
        if not close(scaled, 512 * loss, 1e-3):
            return f"scale(loss) is {scaled / loss:.4g} times the loss; the scale was 512."
        if not seen["attached"]:
            return "scale(loss) is cut off from the graph: multiply the tensor itself, so that backward() can start."
        what = {
            "explicit_scaled": "After scale(loss).backward() the gradient",
            "unscaled": "After unscale_() the gradient",
            "unscaled_bias": "After unscale_() the gradient in the optimizer's second group of parameters",
            "explicit_moved": "With unscale_() called before step() the update",
            "implicit_moved": "With step() alone the update",
        }
        for key, words in what.items():
            if not close(seen[key], expected[key], 1e-3):
                ratio = seen[key] / expected[key]
                return f"{words} is {ratio:.4g} times what it should be (the scale was 512)."
        if not close(seen["in_place"], expected["in_place"], 1e-3):
            return "unscale_() has put another tensor into .grad: divide the gradient in place, as others may hold it."
        return GradientIsUnscaled._wrong_in_a_row(seen["in_a_row"], expected["in_a_row"])

    @staticmethod
    def _wrong_in_a_row(seen: list[list[float]], expected: list[list[float]]) -> str | None:
        for i, (got, want) in enumerate(zip(seen, expected, strict=True)):
            if not got[0] or not want[0] or close(got[0], want[0], 1e-3):  # the next check looks at what is skipped
                continue
            how = "unscale_() and step()" if want[2] else "step() alone"
            return (
                f"Step {i + 1} of several in a row, {how} at a scale of {got[1]:g}: each weight moved by {got[0]:.4g}; "
                f"{want[0]:.4g} is right. Is the gradient divided by the present scale, once, whatever came before?"
            )
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
            before = weights(model)
            if explicit:
                scaler.unscale_(optimizer)
            stepped = scaler.step(optimizer)
            scaler.update()
            steps = optimizer.state[model.weight].get("step", 0)
            moved = not torch.equal(before, weights(model))
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
        seen = {"scales": scales, "steps": steps, "settings": settings, "kind": kind}
        return seen | {"by_default": ScaleGrows._by_default(scaler_class)}

    @staticmethod
    def _by_default(scaler_class: Any) -> list[float]:
        """Return the scale of a scaler made without arguments: at first, and as it moves for the first times."""
        parameter = nn.Parameter(torch.zeros(1))
        optimizer, scaler = torch.optim.SGD([parameter], lr=0.0), scaler_class()
        scales = [float(scaler.get_scale())]
        for gradient, times in ((float("inf"), 1), (1.0, 1999), (1.0, 1)):
            for _ in range(times):
                parameter.grad = torch.full_like(parameter, gradient)
                scaler.step(optimizer)
                scaler.update()
            scales.append(float(scaler.get_scale()))
        return scales

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["kind"] != "float":
            return f"get_scale() returns a {seen['kind']}; a float is wanted."
        if seen["scales"] == expected["scales"]:
            return ScaleGrows._wrong_by_default(seen["by_default"], expected["by_default"])
        pairs = zip(seen["scales"], expected["scales"], strict=True)
        i, got, want = next((i, got, want) for i, (got, want) in enumerate(pairs) if got != want)
        settings = ", ".join(f"{name}={value:g}" for name, value in expected["settings"].items())
        return (
            f"{settings}: after the steps {expected['steps'][: i + 1]} (g good, b bad) the scale is {got:g}; "
            f"it should be {want:g}."
        )

    @staticmethod
    def _wrong_by_default(seen: list[float], expected: list[float]) -> str | None:
        moments = ("at first", "after a bad step", "after 1,999 good steps more", "after the 2,000th good step")
        for moment, got, want in zip(moments, seen, expected, strict=True):
            if got != want:
                return f"A scaler made without arguments has a scale of {got:g} {moment}; {want:g} is right."
        return None


SCALER = (GradientIsUnscaled, OverflowSkipsAndBacksOff, ScaleGrows)
