"""Check of ring attention's backward pass: gradients, work, messages, memory."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..base import Check, Evidence
from . import ring_case
from .ring_case import (
    Order,
    RingCase,
    changed_inputs,
    late_messages,
    wrong_growth,
    wrong_messages,
    wrong_values,
    wrong_work,
)

Backward = Callable[[Tensor, Any, Any, Order], tuple[Tensor, Tensor, Tensor]]


def _look(case: RingCase, ring_backward: Backward) -> ring_case.Look:
    (q, k, v, gradient), right = case.mine, case.right()
    results = right["out"], right["lse"]
    call = lambda: ring_backward(gradient, (q, k, v), results, case.order)  # noqa: E731
    return ("dq", "dk", "dv"), (gradient, q, k, v, *results), call


def observe(seed: int, ring_backward: Backward) -> Evidence:
    """Return what each rank saw, by the number of ranks."""
    return ring_case.observe(seed, _look, ring_backward)


class GradientsOfOneProcess(Check):
    """dq, dk and dv are those of one process, each on the rank that owns the tokens."""

    hint = (
        "dq stays: sum it over all blocks. dk and dv travel after their keys, and every rank adds its part.\n"
        "After N - 1 shifts a block's gradients are one rank short of home, so they need one more.\n"
        "`attend_backward` takes out and lse of your rows, over all columns, as `ring_forward` returned them."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_values(seen)


class EachPairOnce(Check):
    """Each pair of chunks takes one `attend_backward`; nothing of the forward pass is computed again."""

    hint = (
        "The pairs are those of the forward pass: j < i unmasked, j = i causal, and none with j > i.\n"
        "out and lse are given, so no `attend` is needed."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_work(seen, {"backward": 5, "forward": 0})


class SendsGradientsHome(Check):
    """At most N - 1 blocks of keys and values and N of their gradients are sent, point to point."""

    hint = (
        "The last shift sends gradients home. Do keys and values have to go along?\n"
        "One block each of dk and dv per step is enough: they are summed on the way."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_messages(seen, lambda n: 2 * (n - 1) + 2 * n)


class SendsBeforeBlock(Check):
    """Each block is computed while the next keys and values are already on their way."""

    hint = (
        "Keys and values are ready at the beginning of a step, so shift them first. Their gradients are ready at its "
        "end.\n"
        "So you need two shifts: one for keys and values, and one for the gradients, which may finish a step later."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return late_messages(seen)


class HoldsFewGradients(Check):
    """With the same number of tokens per rank, the peak of a rank does not grow with the number of ranks."""

    hint = "Gradients of all keys on each rank are as large as the whole sequence. Let the gradients travel."

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_growth(seen)


class KeepsResults(Check):
    """No input is changed."""

    hint = "Which line writes into an input? Inputs belong to the caller; only the blocks that arrive are yours."

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return changed_inputs(seen, ("gradient", "q", "k", "v", "out", "lse"))


BACKWARD: tuple[Any, ...] = (
    GradientsOfOneProcess,
    EachPairOnce,
    SendsGradientsHome,
    SendsBeforeBlock,
    HoldsFewGradients,
    KeepsResults,
)
