"""Check of 1F1B: the bubble of GPipe, with few micro-batches in flight."""

from typing import ClassVar

from .in_time import InTime
from .lists import Case, Lists, OnLists, any_number
from .promises import not_each_once, stuck, too_much_held
from .trained import TrainsAsOneProcess


class EachActionOnce(OnLists):
    """Each rank runs the forward and the backward pass of each micro-batch once, even if there are few of them."""

    hint = (
        "Can the warm-up be longer than the list of micro-batches? It must stop at m.\n"
        "After the last forward pass there are as many backward passes left as the warm-up has forward passes."
    )
    cases = staticmethod(any_number)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return not_each_once(case, lists, "FB")


class NoRankWaitsForever(OnLists):
    """The lists fit together: no rank waits for a message that never comes."""

    hint = (
        "Follow micro-batch 0 through the ranks: rank r can run B0 only after it has come back from the last rank.\n"
        "If a rank waits for a B too early, the ranks after it may wait for an F that this rank has not run yet."
    )
    after = ("each_action_once",)
    cases = staticmethod(any_number)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return stuck(case, lists)


class SameBubble(InTime):
    """The step takes no longer than with GPipe: (m + ranks - 1) forward and backward passes."""

    hint = (
        "How many micro-batches must be in flight so that rank r has something to do until its first gradient comes?\n"
        "The last rank can alternate at once. What does the rank before it need?"
    )
    after = ("each_action_once", "no_rank_waits_forever")
    cases = staticmethod(any_number)

    @staticmethod
    def ideal(case: Case) -> float:
        return 3 * (case.m + case.ranks - 1)


class FewInFlight(OnLists):
    """Rank r holds at most ranks - r micro-batches at once."""

    hint = "A micro-batch is held from its F to its B. After the warm-up, each F must be followed by a B."
    after = ("each_action_once",)
    cases = staticmethod(any_number)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return too_much_held(lists, [case.ranks - rank for rank in range(case.ranks)])


class SameGradients(TrainsAsOneProcess):
    """On real ranks, the lists give the loss and the gradients of one process, even if messages carry no tags."""

    after = ("each_action_once", "no_rank_waits_forever")
    cases: ClassVar = [Case(3, 5)]


ONE_F_ONE_B = (EachActionOnce, NoRankWaitsForever, SameBubble, FewInFlight, SameGradients)
