"""What a loss scaler must do, for one optimizer or several. Gradients are fed by hand, so that every branch is met."""

import itertools
import math
import random
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from ...core.device import pick_device
from ..base import Check, Evidence
from .measuring_weights import close, weights

EXACT = 1e-4  # relative; a product in FP32 is far closer, one in 16 bits is not
PLACES = {
    "first": "the first group of parameters",
    "last": "the last optimizer",
    "second": "the second group of parameters",
}
SLOPE = 0.5  # of the loss, in each parameter

Optimizers = list[torch.optim.Optimizer]


def _toy(kind: type[torch.optim.Optimizer], lr: float, optimizers: int) -> tuple[nn.Sequential, Optimizers]:
    """Return as many linear layers as `optimizers`, and an optimizer of each.

    The first has two groups of parameters, and before them one parameter that never gets a gradient.
    """
    device = pick_device()
    model = nn.Sequential(*[nn.Linear(6, 3), nn.Linear(3, 2), nn.Linear(2, 1)][:optimizers]).to(device)
    unused = nn.Parameter(torch.ones(2, device=device))
    groups = [{"params": [unused, model[0].weight]}, {"params": [model[0].bias]}]
    return model, [kind(groups, lr=lr), *(kind(layer.parameters(), lr=lr) for layer in model[1:])]


def _step(scaler: Any, optimizers: Optimizers, explicit: bool, overflow: bool = False) -> list[Any]:
    """Take a step of all optimizers and return what `step` returned; unscale all of them first if `explicit`.

    Several are unscaled first after an `overflow`, too, which one of them alone may have met.
    """
    if explicit or (overflow and len(optimizers) > 1):
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    return [scaler.step(optimizer) for optimizer in optimizers]


def _count(counts: list[int], number: int, *_: Any) -> None:
    """Count a call of the optimizer with this number; called as a hook after its step."""
    counts[number] += 1


def _fill(model: nn.Module, value: float) -> None:
    """Set all gradients of `model` to `value`."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


FROZEN = "0.bias"
UNSCALED = ((1000.0, False), (1000.0, True), (0.75, False))  # the scale, and whether an element is inf


def _divided(gradient: list[float], given: list[float], scale: float) -> bool:
    """Say whether each element of `gradient` is the given one divided by `scale`; inf stays inf."""
    if len(gradient) != len(given):
        return False
    right = [element / scale for element in given]
    return all(a == b or abs(a - b) <= EXACT * abs(b) < math.inf for a, b in zip(gradient, right, strict=True))


class _Step(NamedTuple):
    """What a step of `GradientIsUnscaled` does."""

    explicit: bool  # unscale_() is called before step()
    bad: bool


class ForOptimizers(Check):
    """A check of a scaler that serves so many optimizers: one, or several, of which two are tried most."""

    optimizers: ClassVar[int]


class GradientIsUnscaled(ForOptimizers):
    """The loss is multiplied by the scale, and the optimizer sees the gradient divided by it, once."""

    @classmethod
    def probe(cls, seed: int, scaler_class: Any) -> Evidence:
        torch.manual_seed(seed)
        seen = {"steps": cls._steps(seed, scaler_class)}
        if all(step["attached"] for step in seen["steps"]):
            seen["unscaled"] = [cls._unscaled(scaler_class, *case) for case in UNSCALED]
            others = (1, 3) if cls.optimizers > 1 else ()
            seen["others"] = {str(number): cls._moves_of(scaler_class, number) for number in others}
        return seen

    @staticmethod
    def _moves_of(scaler_class: Any, number: int) -> list[float]:
        """Return by how much the weights of each of `number` optimizers move where only step() unscales: by 1."""
        model, optimizers = _toy(torch.optim.SGD, 1.0, number)
        scaler = scaler_class(init_scale=8.0)
        _fill(model, 8.0)
        before = [layer.bias.detach().clone() for layer in model]
        _step(scaler, optimizers, explicit=False)
        return [(layer.bias - was).abs().max().item() for layer, was in zip(model, before, strict=True)]

    @staticmethod
    def _plan(seed: int) -> list[_Step]:
        drawn = random.Random(seed + 1)
        explicit = [True, False] * 4
        drawn.shuffle(explicit)
        before_step_unscales = [i for i in range(1, 7) if not explicit[i + 1]]  # update() must have cleared its record
        first = drawn.choice(before_step_unscales)
        bad = (first, drawn.choice([i for i in range(1, 7) if abs(i - first) > 1]))
        return [_Step(how, i in bad) for i, how in enumerate(explicit)]

    @classmethod
    def _steps(cls, seed: int, scaler_class: Any) -> list[Evidence]:
        """Return what each of several steps did, at a scale that moves: to the loss, the gradient and the weights.

        The slope of the loss is the same everywhere: a right step moves each weight by it.
        """
        model, optimizers = _toy(torch.optim.SGD, 1.0, cls.optimizers)
        # No power of two, above what FP16 holds: a scale that goes through 16 bits is rounded or overflows.
        scaler = scaler_class(init_scale=70_001.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)
        log = []
        for step in cls._plan(seed):
            scale = float(scaler.get_scale())
            model.zero_grad()
            loss = 3.0 + sum(parameter.sum() * SLOPE for parameter in model.parameters())
            value = loss.item()
            scaled = scaler.scale(loss)
            log.append({
                "scale": scale,
                "factor": float(scaled.detach().sum()) / value,
                "loss": loss.item() / value,
                "dimensions": scaled.dim(),
                "attached": scaled.requires_grad,
            })  # fmt: skip
            if not scaled.requires_grad:
                return log
            scaled.sum().backward()
            log[-1]["gradient"] = model[-1].weight.grad.mean().item() / SLOPE
            if step.bad:
                _fill(model, float("inf"))
            before = weights(model)
            _step(scaler, optimizers, step.explicit, step.bad)
            scaler.update()
            moved = (weights(model) - before).abs() / SLOPE
            log[-1]["moved"] = [moved.min().item(), moved.max().item()]
            with torch.no_grad():  # inf would stay
                for parameter in model.parameters():
                    parameter.zero_()
        return log

    @classmethod
    def _unscaled(cls, scaler_class: Any, scale: float, bad: bool) -> Evidence:
        """Return what unscale_() leaves of gradients of all sizes, an inf among them if `bad`."""
        model, optimizers = _toy(torch.optim.SGD, 1.0, cls.optimizers)
        scaler = scaler_class(init_scale=scale)
        given = {}
        for name, parameter in model.named_parameters():
            sizes = 10 ** torch.linspace(-12, 9, parameter.numel())
            given[name] = (sizes * torch.randn(parameter.numel()).sign()).view_as(parameter).to(parameter.device)
        if bad:
            given["0.weight"][0, 0] = float("inf")
        views = {}
        for name, parameter in model.named_parameters():
            parameter.grad = given[name].clone()
            parameter.requires_grad_(name != FROZEN)  # it was frozen after its gradient came
            views[name] = parameter.grad.detach()  # another tensor on the same memory
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        return {
            name: {
                "given": given[name].flatten().tolist(),
                "grad": [] if parameter.grad is None else parameter.grad.flatten().tolist(),
                "view": views[name].flatten().tolist(),
            }
            for name, parameter in model.named_parameters()
        }

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        plan = zip(seen["steps"], expected["steps"], strict=False)
        for number, (got, want) in enumerate(plan, 1):
            wrong = GradientIsUnscaled._wrong_step(number, got, want)
            if wrong:
                return wrong
        for (scale, bad), got in zip(UNSCALED, seen["unscaled"], strict=True):
            wrong = GradientIsUnscaled._wrongly_unscaled(scale, bad, got)
            if wrong:
                return wrong
        for number, moves in seen["others"].items():
            for i, moved in enumerate(moves, 1):
                if not close(moved, 1.0, EXACT):
                    return (
                        f"With {number} optimizer{'s' * (number != '1')} and no unscale_() before step(), an update of "
                        f"optimizer {i} is {moved:.4g} times the gradient. A scaler serves any number of them."
                    )
        return None

    @staticmethod
    def _wrong_step(number: int, got: Evidence, want: Evidence) -> str | None:
        at = f"Step {number}, at a scale of {got['scale']:g}: "
        if not close(got["factor"], got["scale"], EXACT):
            return f"{at}scale(loss) is {got['factor']:.6g} times the loss. Multiply by the current scale."
        if not close(got["loss"], 1.0, EXACT):
            return (
                f"{at}scale(loss) changed the loss itself, to {got['loss']:.4g} times its value. Return a new tensor."
            )
        if not got["attached"]:
            return "scale(loss) is cut off from the graph: multiply the tensor itself, so that backward() can start."
        if got["dimensions"]:
            return f"scale(loss) has {got['dimensions']} dimensions; like the loss, it should have none."
        if not close(got["gradient"], got["scale"], EXACT):
            return (
                f"{at}after scale(loss).backward() the gradient is {got['gradient']:.6g} times that of the loss. Is "
                "the scale applied in FP32, and to the loss alone?"
            )
        if not all(want["moved"]) or not any(got["moved"]):
            return None  # the next check looks at what is skipped
        right_ones = [close(moved, right, EXACT) for moved, right in zip(got["moved"], want["moved"], strict=True)]
        if sum(right_ones) == 1:
            moved = got["moved"][right_ones.index(False)]
            return (
                f"{at}for some parameters an update is {moved:.4g} times the gradient of the loss, for others it is "
                "right. An optimizer may have several groups, and some parameters without a gradient: skip those, and "
                "divide all others."
            )
        for moved, right in zip(got["moved"], want["moved"], strict=True):
            if not close(moved, right, EXACT):
                return (
                    f"{at}an update is {moved / right:.4g} times the gradient of the loss. Is each gradient "
                    "divided by the current scale, once, whether or not unscale_() was called before step()? And does "
                    "update() clear the record that unscale_() was called?"
                )
        return None

    @staticmethod
    def _wrongly_unscaled(scale: float, bad: bool, got: Evidence) -> str | None:
        among = ", one element of which is inf," if bad else ""
        for name, one in got.items():
            group = "second group" if name == "0.bias" else "first group" if name == "0.weight" else "second optimizer"
            if not _divided(one["grad"], one["given"], scale):
                if name == FROZEN and one["grad"] == one["given"] and not bad:
                    return (
                        "unscale_() leaves out a parameter that has a gradient and has since been frozen. What counts "
                        "is whether .grad is None."
                    )
                return (
                    f"Gradients between 1e-12 and 1e9{among} are not divided by the scale of {scale:g}: see the "
                    f"{group} of parameters. unscale_(optimizer) divides every element of every gradient, in its dtype."
                )
            if not _divided(one["view"], one["given"], scale):
                return "unscale_() put another tensor into .grad. Divide the gradient in place; other code may hold it."
        return None


def _what_it_meets(finite: bool, number: str, place: str) -> str:
    """Say which gradients a step gets."""
    if finite:
        return "with finite gradients, up to 1e9"
    return f"with {number} at the end of a gradient in {PLACES[place]}"


def _why_not(step: int, finite: bool, number: str, place: str, explicit: bool) -> str:
    """Ask for what may have gone wrong in a step that was taken and should not have been, or the other way round."""
    clears = "Does update() clear what unscale_() recorded before?"
    if finite:
        return f"No gradient is inf or NaN, and 1e9 is no overflow. {clears}"
    looks = (
        "Does unscale_() look at every gradient of every group, for inf and NaN, does it record what it found, and "
        "does step() use it to decide whether to skip?"
    )
    return looks if explicit or step == 1 else f"Here step() has to call unscale_() itself. {clears} {looks}"


class OverflowSkipsAndBacksOff(ForOptimizers):
    """If any optimizer meets an inf or NaN, no optimizer steps, step() returns False, and the scale backs off."""

    @classmethod
    def probe(cls, seed: int, scaler_class: Any) -> Evidence:
        drawn = random.Random(seed)
        large = 1e9  # far more than FP16 holds, and finite
        bads = [None, float("inf"), None, float("nan"), float("-inf"), large]
        drawn.shuffle(bads)
        model, optimizers = _toy(torch.optim.Adam, 0.1, cls.optimizers)
        scaler = scaler_class(init_scale=2.0 ** drawn.randrange(8, 13), backoff_factor=0.5)
        log: list[Any] = []
        steps, left = [0] * len(optimizers), []
        for number, optimizer in enumerate(optimizers):
            optimizer.register_step_post_hook(partial(_count, steps, number))
        names = ("first", "last" if cls.optimizers > 1 else "second", "second")
        places = itertools.cycle(zip(names, (model[0].weight, model[-1].bias, model[0].bias), strict=True))
        for bad, explicit in zip(bads * 2, [True, False] * 3 + [False, True] * 3, strict=True):
            _fill(model, float(scaler.get_scale()))
            place = ""
            if bad is not None:  # the last element of one parameter or another: looking at the first is not enough
                place, parameter = next(places)
                parameter.grad.view(-1)[-1] = bad
            before = weights(model)
            finite = bad is None or bad == large
            stepped = _step(scaler, optimizers, explicit, not finite)
            between = float(scaler.get_scale())
            left.append(all(p.grad is not None and bool(p.grad.any()) for p in model.parameters()))
            scaler.update()
            moved = not torch.equal(before, weights(model))
            returned = [None if one is None else bool(one) for one in stepped]
            number = "" if bad is None else f"{bad:g}"
            log.append(
                [moved, list(steps), returned, float(scaler.get_scale()), between, finite, number, place, explicit]
            )
        return {
            "log": log,
            "left": left,
            "alone": cls._alone(scaler_class),
            "cleaned": cls._cleaned(scaler_class),
            "in the frozen one": cls._cleaned(scaler_class, FROZEN),
            "single": cls._at_work(scaler_class, (1.0,)),
            "two": cls._at_work(scaler_class, (float("inf"), 1.0)),
            "optimizers": cls.optimizers,
        }

    @staticmethod
    def _alone(scaler_class: Any) -> list[bool]:
        """Return whether the weights move, and what step() returns, where it has to find the inf itself."""
        model, (optimizer,) = _toy(torch.optim.SGD, 1.0, 1)
        scaler = scaler_class(init_scale=4.0)
        _fill(model, float("inf"))
        before = weights(model)
        returned = bool(scaler.step(optimizer))
        return [not torch.equal(before, weights(model)), returned]

    @classmethod
    def _cleaned(cls, scaler_class: Any, frozen: str = "") -> bool:
        """Return whether a step is taken where the caller replaces an inf after unscale_() has met it.

        With `frozen`, only the gradient of this parameter holds inf, and it has been frozen since.
        """
        model, optimizers = _toy(torch.optim.SGD, 1.0, cls.optimizers)
        scaler = scaler_class(init_scale=4.0)
        _fill(model, 1.0 if frozen else float("inf"))
        if frozen:
            model.get_parameter(frozen).requires_grad_(False).grad.fill_(float("inf"))
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        _fill(model, 1.0)
        before = weights(model)
        _step(scaler, optimizers, explicit=False)
        return not torch.equal(before, weights(model))

    @classmethod
    def _at_work(cls, scaler_class: Any, values: tuple[float, ...]) -> list[float]:
        """Return how far each of several scalers moves the weights, each with gradients of its own value.

        All of them unscale first; then one after the other steps and has its update().
        """
        pairs = []
        for value in values:
            model, optimizers = _toy(torch.optim.SGD, 1.0, cls.optimizers)
            scaler = scaler_class(init_scale=4.0)
            _fill(model, value)
            pairs.append((scaler, model, optimizers, weights(model)))
        for scaler, _, optimizers, _ in pairs:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
        for scaler, _, optimizers, _ in pairs:
            _step(scaler, optimizers, explicit=False)
            scaler.update()
        return [(weights(model) - before).abs().max().item() for _, model, _, before in pairs]

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        previous = None
        for i, (got, want) in enumerate(zip(seen["log"], expected["log"], strict=True), 1):
            step = f"step {i} ({_what_it_meets(*want[5:8])})"
            if got[0] != want[0] or got[1] != want[1]:
                taken, right = (" and ".join(map(str, each[1])) for each in (got, want))
                return (
                    f"In {step} the weights {'moved' if got[0] else 'did not move'}, and the optimizer steps taken so "
                    f"far are {taken}, not {right}. {_why_not(i, *want[5:])}"
                )
            if got[2] != want[2]:
                returned, right = (" and ".join(map(str, each[2])) for each in (got, want))
                return f"In {step} step() returned {returned}; it should return {right}: whether the optimizer stepped."
            if previous is not None and got[4] != previous:
                return (
                    f"In {step} the scale is {got[4]:g} before update(), although it was {previous:g}: "
                    "only update() may change it."
                )
            if got[3] != want[3]:
                return f"After {step} the scale is {got[3]:g}; it should be {want[3]:g}. Look at update()."
            if not seen["left"][i - 1]:
                return (
                    f"After step() of {step} a gradient is gone or zero. step() leaves them: the caller clears them, "
                    "when it no longer needs them."
                )
            previous = got[3]
        if seen["alone"] != expected["alone"]:
            moved, returned = seen["alone"]
            return (
                "With one optimizer, an inf in its gradient and no unscale_() before step(), the weights "
                f"{'moved' if moved else 'did not move'} and step() returned {returned}. step() has to unscale before "
                "it decides whether to step."
            )
        if seen["cleaned"]:
            return (
                "An inf that unscale_() has met is replaced before step(), which then steps. unscale_() records what "
                "it finds, and step() goes by the record."
            )
        if seen["in the frozen one"]:
            return (
                "An inf in the gradient of a parameter that has since been frozen does not count. unscale_() looks at "
                "every gradient that there is."
            )
        moved, right = seen["single"][0], expected["single"][0]
        if not close(moved, right, EXACT):
            return (
                "Only partly checked: first make a step after unscale_() right. It moves the weights by "
                f"{moved / right:.4g} times what it should. See gradient_is_unscaled."
            )
        if not all(close(got, want, EXACT) for got, want in zip(seen["two"], expected["two"], strict=True)):
            unscaled = "whether it has unscaled" if expected["optimizers"] == 1 else "which optimizers it has unscaled"
            return (
                "Two scalers at work, one with an inf gradient and one without; each of them alone is right. Each must "
                f"use what it found itself, and know {unscaled}. Keep that in self, not in the class."
            )
        return None


def _same(scales: list[float], right: list[float]) -> bool:
    """Say whether two lists of scales agree, but for the last bits of a power."""
    return len(scales) == len(right) and all(close(a, b, EXACT) for a, b in zip(scales, right, strict=True))


class _Case(NamedTuple):
    """A scaler, and the steps it goes through: g good, b bad, B bad for every optimizer."""

    settings: dict[str, float]
    steps: str


class ScaleGrows(ForOptimizers):
    """After growth_interval good steps in a row the scale grows; a bad step restarts the count."""

    hint = (
        "Count good steps in update(); compare with growth_interval; set the count to 0 after growing or backing off."
    )

    @classmethod
    def _cases(cls, seed: int) -> list[_Case]:
        drawn = random.Random(seed)
        n = drawn.choice((3, 4, 5))
        usual = {
            "init_scale": 2.0 ** drawn.randrange(5, 9),
            "growth_factor": drawn.choice((4.0, 8.0)),
            "backoff_factor": drawn.choice((0.25, 0.125)),
            "growth_interval": n,
        }
        often = {"init_scale": 2.0**24, "growth_factor": 4.0, "backoff_factor": 0.5, "growth_interval": 1}
        return [
            _Case(usual, "g" * n + "g" * (n - 1) + "b" + "g" * n + "g" * (n + 1) + "bb" + "g" * n),
            _Case(often, "ggbg"),
            # nothing keeps the scale above 1, or at powers of two
            _Case(usual | {"init_scale": 3.0, "growth_factor": 1.5}, "bb" + "g" * n),
            # nor within what FP16 holds
            _Case(often | {"growth_factor": 2.0**40}, "gg"),
            _Case(often | {"init_scale": 1.0, "backoff_factor": 2.0**-30}, "bb"),
            *([_Case(usual, "B" + "g" * n + "B")] if cls.optimizers > 1 else []),
        ]

    @classmethod
    def probe(cls, seed: int, scaler_class: Any) -> Evidence:
        runs = [cls._scales(scaler_class, case) for case in cls._cases(seed)]
        kind = type(scaler_class(init_scale=8.0).get_scale()).__name__
        defaults = _Case({}, "b" + "g" * 2000)
        others = (1, 3) if cls.optimizers > 1 else ()
        few = {"init_scale": 64.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2}
        return {
            "runs": runs,
            "kind": kind,
            "by_default": cls._scales(scaler_class, defaults),
            "others": {str(n): cls._scales(scaler_class, _Case(few, "gggbgg"), n) for n in others},
        }

    @classmethod
    def _scales(cls, scaler_class: Any, case: _Case, number: int = 0) -> Evidence:
        """Return the scale at first, and after each step, with another `number` of optimizers if one is given."""
        model, optimizers = _toy(torch.optim.SGD, 0.0, number or cls.optimizers)
        scaler = scaler_class(**case.settings)
        scales = [float(scaler.get_scale())]
        for step in case.steps:
            _fill(model, 1.0)
            for layer in {"b": model[:1], "B": model}.get(step, ()):  # b: the second optimizer meets none
                layer.bias.grad.view(-1)[-1] = float("inf")
            _step(scaler, optimizers, explicit=False, overflow=step in "bB")
            scaler.update()
            scales.append(float(scaler.get_scale()))
        return {"settings": case.settings, "steps": case.steps, "scales": scales}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["kind"] != "float":
            return f"get_scale() returns a {seen['kind']}; it should return a float."
        for got, want in zip(seen["runs"], expected["runs"], strict=True):
            if not _same(got["scales"], want["scales"]):
                return ScaleGrows._wrong(got["scales"], want)
        for number, want in expected["others"].items():
            if not _same(seen["others"][number]["scales"], want["scales"]):
                plural = "" if number == "1" else "s"
                wrong = ScaleGrows._wrong(seen["others"][number]["scales"], want)
                return f"With {number} optimizer{plural}, {wrong} A scaler serves any number of them."
        return ScaleGrows._wrong_by_default(seen["by_default"]["scales"], expected["by_default"]["scales"])

    @staticmethod
    def _wrong(scales: list[float], want: Evidence) -> str:
        pairs = zip(scales, want["scales"], strict=True)
        i, got, right = next((i, got, right) for i, (got, right) in enumerate(pairs) if not close(got, right, EXACT))
        settings = ", ".join(f"{name}={value:g}" for name, value in want["settings"].items())
        return (
            f"{settings}: after the steps {want['steps'][:i]} (g good; b bad: inf in {PLACES['second']}"
            f"{'; B: inf in every optimizer' * ('B' in want['steps'])}) the scale is {got:g}; it should be {right:g}."
            f"{ScaleGrows._cause(got, i, want)}"
        )

    @staticmethod
    def _cause(got: float, i: int, want: Evidence) -> str:
        """Say what the last of `i` steps asks for, where the scale is `got` and not what is wanted."""
        if i == 0:
            return " It starts at init_scale."
        before, right = want["scales"][i - 1 : i + 1]
        same = close(got, before, EXACT)
        if want["steps"][i - 1] in "bB":
            return (
                " The last step is bad, and update() should multiply the scale by backoff_factor, once."
                f"{' Was the inf found?' * same}"
            )
        restarts = [j for j in range(1, i) if want["scales"][j] != want["scales"][j - 1]]
        good = i - max(restarts, default=0)
        if right != before:
            first = " Does each good step count, and does the count restart after the scale has grown?"
            return f" The last {good} steps are good, so update() should multiply it by growth_factor.{first * same}"
        after = "a bad step" if restarts and want["steps"][restarts[-1] - 1] in "bB" else "the scale has grown"
        restart = f" Does the count restart after {after}?" if restarts else ""
        return (
            f" Only {good} good step{'s' * (good != 1)} had been counted by then, and growth_interval is "
            f"{want['settings'].get('growth_interval', 2000):g}.{restart}"
        )

    @staticmethod
    def _wrong_by_default(seen: list[float], expected: list[float]) -> str | None:
        moments = {
            0: "at first",
            1: "after a bad step",
            -2: "after 1,999 more good steps",
            -1: "after the 2,000th good step",
        }
        for at, moment in moments.items():
            if seen[at] != expected[at]:
                return f"A scaler made without arguments has a scale of {seen[at]:g} {moment}, not {expected[at]:g}."
        return None
