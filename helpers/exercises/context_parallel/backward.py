"""Check of ring attention's backward pass: gradients, work, messages, memory."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..base import Check, Evidence
from . import ring_case
from .ring_case import Order, RingCase, changed_inputs, wrong_growth, wrong_messages, wrong_values, wrong_work

Backward = Callable[[Tensor, Any, Any, Order], tuple[Tensor, Tensor, Tensor]]
GROWTH = 6.5  # blocks that the peak may grow from 2 to 5 ranks; kept visitors are 6 more, and their gradients as many


def _look(case: RingCase, ring_backward: Backward) -> ring_case.Look:
    (q, k, v, gradient), right = case.mine, case.right()
    results = right["out"], right["lse"]
    call = lambda: ring_backward(gradient, (q, k, v), results, case.order)  # noqa: E731
    return ("dq", "dk", "dv"), (gradient, q, k, v, *results), call


def observe(seed: int, ring_backward: Backward) -> Evidence:
    """Return what each rank saw, by the number of ranks."""
    return ring_case.observe(seed, _look, ring_backward)


class GradientsOfOneProcess(Check):
    """dq, dk and dv are those of one process, each on the rank whose tokens they belong to."""

    hint = (
        "dq stays: it adds up over the visitors. dk and dv travel with their keys, and every rank adds its part.\n"
        "After N - 1 steps a block's gradients are one rank short of home: one more shift.\n"
        "`attend_backward` takes out and lse of your rows, over all columns, as `ring_forward` returned them."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_values(seen)


class EachPairOnce(Check):
    """Each pair of pieces takes one `attend_backward`; nothing of the forward pass is computed again."""

    hint = (
        "The same pairs as forward: j < i whole, j = i causal, j > i not at all.\n"
        "out and lse are given; no `attend` is needed."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_work(seen, {"backward": 5, "forward": 0})


class SendsGradientsHome(Check):
    """At most N - 1 blocks of keys and values and N of their gradients are sent, point to point, and nothing else."""

    hint = (
        "The last shift brings gradients home. Do keys and values have to go along?\n"
        "One block for each of dk and dv in each step: they are added up on the way."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_messages(seen, lambda n: 2 * (n - 1) + 2 * n)


class HoldsFewGradients(Check):
    """With as many tokens on each rank, the peak of a rank does not grow with the ranks."""

    hint = "A tensor of gradients for all keys on each rank is the whole sequence again: let the gradients travel."

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_growth(seen, GROWTH)


class KeepsResults(Check):
    """Nothing that comes in is changed."""

    hint = "Whose memory do you write into? What is given is the caller's; what arrives is yours."

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return changed_inputs(seen, ("gradient", "q", "k", "v", "out", "lse"))


BACKWARD: tuple[Any, ...] = (GradientsOfOneProcess, EachPairOnce, SendsGradientsHome, HoldsFewGradients, KeepsResults)
