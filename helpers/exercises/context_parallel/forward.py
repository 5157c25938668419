"""Check of ring attention's forward pass: results, work, messages, memory."""

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

Forward = Callable[[Tensor, Tensor, Tensor, Order], tuple[Tensor, Tensor]]


def _look(case: RingCase, ring_forward: Forward) -> ring_case.Look:
    q, k, v, _ = case.mine
    return ("out", "lse"), (q, k, v), lambda: ring_forward(q, k, v, case.order)


def observe(seed: int, ring_forward: Forward) -> Evidence:
    """Return what each rank saw, by the number of ranks."""
    return ring_case.observe(seed, _look, ring_forward)


class ForwardOfOneProcess(Check):
    """out and lse are those of one process, for any distribution of the chunks."""

    hint = (
        "Which rank's block does this rank compute with in step s? One step earlier, rank - 1 had it.\n"
        "Its chunks are order[(rank - step) % ranks]: compare their numbers with those of your rows, chunk by chunk.\n"
        "Start with out 0 and lse -inf (no column attended), and merge each result of `attend` into it."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_values(seen)


class ComputesWhatRowsSee(Check):
    """`attend` computes all scores, each once; masked chunks cost nothing."""

    hint = (
        "Rows of chunk i, columns of chunk j: all of them if j < i, causal if j = i, and no call at all if j > i.\n"
        "Scores that are computed and then masked cost as much as the others."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_work(seen, {"forward": 2, "backward": 0})


class SendsKeysAndValues(Check):
    """N - 1 blocks of keys and values are sent, point to point, and nothing else."""

    hint = "In the last step every rank holds its last block. Does any rank need another shift?\nQueries do not travel."

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_messages(seen, lambda n: 2 * (n - 1))


class SendsBeforeItComputes(Check):
    """Each block is computed while the next keys and values are already on their way."""

    hint = "Call `shift` at the beginning of a step, compute with the block at hand, and call `finish` at its end."

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return late_messages(seen)


class HoldsAFewBlocks(Check):
    """With the same number of tokens per rank, the peak of a rank does not grow with the number of ranks."""

    hint = (
        "Which blocks are still alive in the last step? A list of all of them is the whole sequence.\n"
        "A block can be released when the next one has arrived."
    )

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return wrong_growth(seen)


class KeepsQueriesKeysValues(Check):
    """No input is changed."""

    hint = "Which line writes into q, k or v? They belong to the caller; only the blocks that arrive are yours."

    compared = False

    probe = staticmethod(observe)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return changed_inputs(seen, ("q", "k", "v"))


FORWARD: tuple[Any, ...] = (
    ForwardOfOneProcess,
    ComputesWhatRowsSee,
    SendsKeysAndValues,
    SendsBeforeItComputes,
    HoldsAFewBlocks,
    KeepsQueriesKeysValues,
)
