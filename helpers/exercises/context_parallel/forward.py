"""Check of ring attention's forward pass: results, work, messages, memory."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..base import Check, Evidence
from . import ring_case
from .ring_case import Order, RingCase, changed_inputs, wrong_growth, wrong_messages, wrong_values, wrong_work

Forward = Callable[[Tensor, Tensor, Tensor, Order], tuple[Tensor, Tensor]]
GROWTH = 4.0  # blocks that the peak may grow from 2 to 5 ranks; gathered keys and values are 6 more, of 3 more ranks


def _look(case: RingCase, ring_forward: Forward) -> ring_case.Look:
    q, k, v, _ = case.mine
    return ("out", "lse"), (q, k, v), lambda: ring_forward(q, k, v, case.order)


def observe(seed: int, ring_forward: Forward) -> Evidence:
    """Return what each rank saw, by the number of ranks."""
    return ring_case.observe(seed, _look, ring_forward)


class ForwardOfOneProcess(Check):
    """out and lse are those of one process, whoever has which pieces."""

    hint = (
        "Which rank's block is at work in step s? It was that of rank - 1 a step ago.\n"
        "Its pieces are order[(rank - step) % ranks]: compare their numbers with those of your rows, piece by piece.\n"
        "Begin with nothing seen, out 0 and lse -inf, and merge what `attend` returns into it."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_values(seen)


class ComputesWhatRowsSee(Check):
    """All scores are computed by `attend`, each once; what no row may see costs nothing."""

    hint = (
        "Rows of piece i, columns of piece j: everything if j < i, causal if j = i, and no call at all if j > i.\n"
        "Scores that are computed and masked away cost as much as the others."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_work(seen, {"forward": 2, "backward": 0})


class SendsKeysAndValues(Check):
    """N - 1 blocks of keys and values are sent, point to point, and nothing else."""

    hint = (
        "In the last step everybody has the last visitor: does anybody need what comes after it?\n"
        "Queries stay where they are."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_messages(seen, lambda n: 2 * (n - 1))


class HoldsAFewBlocks(Check):
    """With as many tokens on each rank, the peak of a rank does not grow with the ranks."""

    hint = (
        "Which blocks are still alive in the last step? A list of all visitors is the whole sequence.\n"
        "A visitor may go when the next one has arrived."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_growth(seen, GROWTH)


class KeepsQueriesKeysValues(Check):
    """Nothing that comes in is changed."""

    hint = "Whose memory do you write into? q, k and v are the caller's; what arrives is yours."

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return changed_inputs(seen, ("q", "k", "v"))


FORWARD: tuple[Any, ...] = (
    ForwardOfOneProcess,
    ComputesWhatRowsSee,
    SendsKeysAndValues,
    HoldsAFewBlocks,
    KeepsQueriesKeysValues,
)
