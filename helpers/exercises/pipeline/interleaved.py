"""Check of the interleaved schedule: several thin stages per rank."""

from typing import ClassVar

from .in_time import InTime
from .lists import Case, Lists, OnLists, in_chunks
from .promises import not_each_once, stuck, too_much_held
from .trained import TrainsAsOneProcess


class EachActionOnce(OnLists):
    """Each rank runs the forward and the backward pass of each micro-batch once in each of its chunks."""

    hint = (
        "An action names its chunk: (\"F\", i, chunk). There are v x m forward passes on a rank.\n"
        "After the last forward pass there are as many backward passes left as the warm-up has forward passes."
    )  # fmt: skip
    cases = staticmethod(in_chunks)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return not_each_once(case, lists, "FB")


class NoRankWaitsForever(OnLists):
    """The lists fit together: no rank waits for a message that never comes."""

    hint = (
        "Chunk 1 of a micro-batch can start on rank 0 when chunk 0 has left the last rank.\n"
        "In the backward pass the last chunk comes first."
    )
    after = ("each_action_once",)
    cases = staticmethod(in_chunks)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return stuck(case, lists)


class ThinnerBubble(InTime):
    """The step takes (v x m + ranks - 1) forward and backward passes of a chunk."""

    hint = (
        "Run as many micro-batches through chunk 0 as there are ranks; then the first of them is back on rank 0.\n"
        "How many forward passes are in the warm-up of 1F1B? Here (v - 1) x ranks more are needed."
    )
    after = ("each_action_once", "no_rank_waits_forever")
    cases = staticmethod(in_chunks)

    @staticmethod
    def ideal(case: Case) -> float:
        return 3 * (case.chunks * case.m + case.ranks - 1)


class FewInFlight(OnLists):
    """Rank r holds at most v x ranks - r micro-batches at once, counted per chunk."""

    hint = "The contract limits the warm-up. After it, each F must be followed by a B."
    after = ("each_action_once",)
    cases = staticmethod(in_chunks)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return too_much_held(lists, [case.chunks * case.ranks - rank for rank in range(case.ranks)])


class SameGradients(TrainsAsOneProcess):
    """On real ranks, the lists give the loss and the gradients of one process, even if messages carry no tags."""

    after = ("each_action_once", "no_rank_waits_forever")
    cases: ClassVar = [Case(2, 4, 2)]


INTERLEAVED = (EachActionOnce, NoRankWaitsForever, ThinnerBubble, FewInFlight, SameGradients)
