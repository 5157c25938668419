"""Check of checkpointing as a function of autograd: keep the input, run once more in the backward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...meter.recorder import MemoryMeter
from ..base import Check, Evidence
from ..probing.distance import relative_distance

Function = type[torch.autograd.Function]
EXACT = 1e-6  # relative, in FP64: no room for anything but another order of a sum


class _Counted:
    """A small network that counts its calls; not a module, so that an answer cannot ask it for its parameters."""

    def __init__(self, out: int = 6) -> None:
        self.layers = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, out), nn.Tanh()).double()
        self.calls = 0
        self.recorded = False  # whether the result of the last call has a graph

    def __call__(self, x: Tensor) -> Tensor:
        """Map x (B, 6) to (B, out)."""
        self.calls += 1
        y = self.layers(x)
        self.recorded = y.requires_grad
        return y


def _flat(tensors: Any) -> list[float]:
    """Return all numbers of `tensors`; none for a gradient that is missing."""
    return torch.cat([t.detach().flatten() for t in tensors if t is not None] or [torch.zeros(0)]).tolist()


def _cast(seed: int, out: int = 6) -> tuple[_Counted, Tensor, Tensor]:
    """Return a network, its input (4, 6), which requires a gradient, and a gradient for its result."""
    torch.manual_seed(seed)
    run = _Counted(out)
    x, gradient = torch.randn(4, 6).double().requires_grad_(), 5 * torch.randn(4, out).double()
    return run, x, gradient


class GivesTheSameResult(Check):
    """The result is that of run(x), to the last bit."""

    hint = "forward receives `run` and `x`: return run(x)."

    @staticmethod
    def probe(seed: int, Recompute: Function) -> Evidence:
        run, x, _ = _cast(seed)
        y = Recompute.apply(run, x)
        if not isinstance(y, Tensor):
            return {"returned": type(y).__name__}
        right = run.layers(x)
        return {"same": torch.equal(y, right), "distance": relative_distance(_flat([y]), _flat([right]))}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if "returned" in seen:
            return f"apply(run, x) gives a {seen['returned']}; forward has to return the tensor run(x)."
        if seen["same"]:
            return None
        return f"apply(run, x) is not run(x): relative distance {seen['distance']:.1e}. Return run(x) as it is."


class KeepsTheInputAlone(Check):
    """Between the passes only x is kept, and the graph of the second run is freed after the backward pass."""

    hint = (
        "In forward, autograd records nothing, so intermediate tensors of run are freed, unless you keep one "
        "or enable recording.\n"
        "ctx.save_for_backward(x) is all that forward has to keep, besides `run` as an attribute of ctx.\n"
        "ctx lives as long as the result of the forward pass. Anything that backward stores on ctx stays alive."
    )

    @staticmethod
    def probe(seed: int, Recompute: Function) -> Evidence:
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Tanh())
        x = torch.randn(128, 64).requires_grad_()
        with MemoryMeter(layers) as meter:
            total = Recompute.apply(lambda x: layers(x), x).sum()  # and the result itself is thrown away
        with MemoryMeter(layers) as later:
            refused = _refused(total)  # `total` and its graph are still there
        between, after = (sum(seen.timeline[-1].held.values()) for seen in (meter, later))
        return {"between": between, "after": after, "input": x.nbytes, "refused": refused}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        more, after = ((seen[moment] - expected[moment]) / seen["input"] for moment in ("between", "after"))
        if not more < 0.5:
            return (
                f"After the forward pass, {more:.1f} tensors of the size of x are held besides x. Does ctx keep a "
                "result of run, or does autograd record in forward?"
            )
        if seen["refused"]:
            return _HELD_BACK
        if not after < 1.5:  # a kept x may have its .grad
            return (
                f"After the backward pass, {after:.1f} tensors of the size of x are still held. Does `ctx` keep what "
                "the second run made, or is its graph retained?"
            )
        return None


class RunsOnceInEachPass(Check):
    """run is called once in the forward pass and once more in the backward pass."""

    hint = "The result of the forward pass has no graph. To get one, the backward pass calls run again."

    @staticmethod
    def probe(seed: int, Recompute: Function) -> Evidence:
        run, x, gradient = _cast(seed + 1)
        y = Recompute.apply(run, x)
        forward = run.calls
        refused = _refused(y, gradient)
        return {"calls": {"forward": forward, "backward": run.calls - forward}, "refused": refused}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["refused"]:
            return _HELD_BACK
        for name, want in expected["calls"].items():
            if seen["calls"][name] != want:
                return f"The {name} pass calls run {seen['calls'][name]} times; expected {want}. Look at `{name}`."
        return None


_HELD_BACK = "Not judged until the backward pass runs to its end: see gives_the_input_its_gradient."
_NO_GRAPH = "does not require grad"
_REFUSED = {
    "returned a gradient different than None at position 1": (
        "backward returns a gradient for `run`, its first argument. The order is that of forward: None, then x's."
    ),
    _NO_GRAPH: (
        "the second run has left no graph. Autograd is off inside backward as well: use torch.enable_grad(), and an x "
        "that requires a gradient."
    ),
    "Mismatch in shape": (
        "the inner backward pass is given a gradient whose shape differs from that of what it starts from. `gradient` "
        "belongs to the result of run(x) as it is, not to its sum."
    ),
}


_OUTSIDE = (
    "the inner backward pass starts from a tensor without a graph, although the result of the second run has one. "
    "Under torch.no_grad(), as in backward, even a sum of that result gets none: start from the result itself."
)


def _pass_back(y: Tensor, gradient: Tensor, run: _Counted) -> None:
    """Call backward; where PyTorch refuses what a Function does, say what its message means."""
    try:
        y.backward(gradient)
    except RuntimeError as error:
        for words, meaning in _REFUSED.items():
            if words in str(error):
                meaning = _OUTSIDE if words == _NO_GRAPH and run.recorded else meaning
                raise RuntimeError(f"{meaning} (PyTorch: ... {words} ...)") from error
        raise


def _refused(y: Tensor, gradient: Tensor | None = None) -> bool:
    """Call backward, and return whether PyTorch refuses what a Function does in a way that another check explains."""
    try:
        y.backward(gradient)
    except RuntimeError as error:
        if any(words in str(error) for words in _REFUSED):
            return True
        raise
    return False


def _wrong_gradient(seen: list[float], right: list[float], of: str) -> str | None:
    """Say how the gradient of `of` differs from the right one: missing, too long, or another."""
    if relative_distance(seen, right) <= EXACT:
        return None
    if len(seen) != len(right):
        return (
            f"There is no gradient for {of}. Does the second run record a graph, and does backward return x's gradient?"
        )
    mine, want = torch.tensor(seen), torch.tensor(right)
    length, cosine = (mine.norm() / want.norm()).item(), torch.cosine_similarity(mine, want, dim=0).item()
    if cosine > 0.9999:
        return (
            f"The gradient of {of} has the right direction, but {length:.4g} times the right norm. Add it once, "
            "unscaled."
        )
    return (
        f"The gradient of {of} is wrong: cosine {cosine:.4f}, {length:.4g} times as long as the right one. Does the "
        "inner backward pass start from the `gradient` that it is given?"
    )


def _gradients_of_input(apply: Callable[[_Counted, Tensor], Tensor], seed: int) -> Evidence:
    run, x, gradient = _cast(seed)
    _pass_back(apply(run, x), gradient, run)
    seen = {"x (a leaf)": _flat([x.grad])}
    run, weight, gradient = _cast(seed + 1)
    arrivals: list[Tensor] = []
    weight.register_post_accumulate_grad_hook(arrivals.append)
    _pass_back(apply(run, weight + 1), gradient, run)
    return {"arrivals": len(arrivals)} | seen | {"x (which comes from another layer)": _flat([weight.grad])}


class GivesTheInputItsGradient(Check):
    """backward returns the gradient of x, computed from the incoming gradient of the result."""

    hint = (
        "The second run needs an x that is a leaf: x.detach().requires_grad_().\n"
        "Run on it under torch.enable_grad(), and call torch.autograd.backward(result, gradient).\n"
        "Then the detached x has its .grad: return None, x.grad."
    )

    @staticmethod
    def probe(seed: int, Recompute: Function) -> Evidence:
        mine = _gradients_of_input(Recompute.apply, seed + 2)
        right = _gradients_of_input(lambda run, x: run(x), seed + 2)
        return {"mine": mine, "right": right}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        right = {case: gradient for case, gradient in expected["right"].items() if case != "arrivals"}
        found = (_wrong_gradient(seen["mine"][case], right[case], case) for case in right)
        wrong = next((wrong for wrong in found if wrong), None)
        if wrong and seen["mine"]["arrivals"] > 1:
            wrong += (
                " The second run did not use a detached x, so its backward pass continued into the graph that made x."
            )
        return wrong


def _gradients_of_parameters(apply: Callable[[_Counted, Tensor], Tensor], seed: int) -> dict[str, list[float]] | None:
    """Run three checkpointed stretches side by side: two share their parameters, which have gradients already.

    None: PyTorch refuses the backward pass.
    """
    run, x, gradient = _cast(seed, out=5)
    other = _Counted(out=5)
    for p in run.layers.parameters():
        p.grad = torch.full_like(p, 0.5)
    if _refused(apply(run, x) + apply(run, x + 1) + apply(other, x), gradient):
        return None
    return {
        "with 0.5 in .grad before": _flat(p.grad for p in run.layers.parameters()),
        "without a .grad before": _flat(p.grad for p in other.layers.parameters()),
    }


class AddsToParameters(Check):
    """The gradients of the parameters that run uses are added to their .grad."""

    hint = (
        "torch.autograd.grad gives the gradients that you ask for; torch.autograd.backward adds to the .grad of every "
        "leaf that it meets. Which of the two meets the parameters?\n"
        "A model has many checkpointed blocks: each call of apply has a ctx of its own, but all share the class."
    )

    @staticmethod
    def probe(seed: int, Recompute: Function) -> Evidence:
        mine = _gradients_of_parameters(Recompute.apply, seed + 3)
        return {"mine": mine, "right": _gradients_of_parameters(lambda run, x: run(x), seed + 3)}

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        if seen["mine"] is None:
            return _HELD_BACK
        unmoved, missing = seen["mine"].values()
        if not missing and relative_distance(unmoved, [0.5] * len(unmoved)) < EXACT:
            return (
                "Nothing was added to the .grad of any parameter. torch.autograd.grad returns the gradients of what it "
                "is asked for, and adds to no .grad; torch.autograd.backward adds to that of every leaf."
            )
        for case, right in expected["right"].items():
            mine = seen["mine"][case]
            if mine and relative_distance(mine, [0.5] * len(right)) < EXACT:
                return (
                    "Two networks, checkpointed side by side: the .grad of one network's parameters is what it was "
                    "before: nothing was added. Does the backward pass run the `run` of its own call?"
                )
            if wrong := _wrong_gradient(mine, right, f"the parameters ({case})"):
                return wrong
        return None


RECOMPUTE = (
    GivesTheSameResult,
    KeepsTheInputAlone,
    RunsOnceInEachPass,
    GivesTheInputItsGradient,
    AddsToParameters,
)
