"""Check of the schedule that fills the bubble with weight gradients (ZB-H1)."""

from typing import ClassVar

from ..pipeline.in_time import InTime
from ..pipeline.lists import Case, Lists, OnLists, enough
from ..pipeline.promises import not_each_once, stuck, too_much_held
from ..pipeline.trained import TrainsAsOneProcess


class EachActionOnce(OnLists):
    """Each rank runs F, I and W of each micro-batch once, and no B."""

    hint = "Each B becomes an I at once and a W later. Has every W run by the end, even if m is small?"
    cases = staticmethod(enough)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return not_each_once(case, lists, "FIW")


class NoRankWaitsForever(OnLists):
    """The lists fit together: each W comes after its own I, and no rank waits for a message that never comes."""

    hint = "The W of a micro-batch needs the tensors that its I stored, so it comes later in the same list."
    after = ("each_action_once",)
    cases = staticmethod(enough)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return stuck(case, lists)


class FilledBubble(InTime):
    """The step takes 3 m + ranks - 1 ticks, where F, I and W take one each."""

    hint = (
        "Which rank's I does no other rank need, so that W may follow at once? How many W can the last rank postpone?\n"
        "Start from 1F1B. On which rank would a W that comes at once delay another rank?"
    )
    after = ("each_action_once", "no_rank_waits_forever")
    cases = staticmethod(enough)

    @staticmethod
    def ideal(case: Case) -> float:
        return 3 * case.m + case.ranks - 1


class FewInFlight(OnLists):
    """No rank holds more micro-batches at once than rank 0 does with 1F1B: as many as there are ranks."""

    hint = (
        "A micro-batch is held from its F to its W. If every W comes at the end, all micro-batches are held.\n"
        "How many fewer micro-batches than rank 0 does a later rank hold under 1F1B? It may postpone that many W."
    )
    after = ("each_action_once",)
    cases = staticmethod(enough)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return too_much_held(lists, [case.ranks] * case.ranks)


class SameGradients(TrainsAsOneProcess):
    """On real ranks, the lists give the loss and the gradients of one process, even if messages carry no tags."""

    after = ("each_action_once", "no_rank_waits_forever")
    cases: ClassVar = [Case(3, 4)]


ZERO_BUBBLE = (EachActionOnce, NoRankWaitsForever, FilledBubble, FewInFlight, SameGradients)
