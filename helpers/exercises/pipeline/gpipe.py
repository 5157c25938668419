"""Check of GPipe: all forward passes, then all backward passes."""

from typing import ClassVar

from .in_time import InTime
from .lists import Case, Lists, OnLists, any_number
from .promises import not_each_once, stuck
from .trained import TrainsAsOneProcess


class EachActionOnce(OnLists):
    """Each rank runs the forward and the backward pass of each micro-batch once, and nothing else."""

    hint = 'For m micro-batches: m entries ("F", i) and m entries ("B", i), on every rank. Micro-batches count from 0.'
    cases = staticmethod(any_number)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return not_each_once(case, lists, "FB")


class ForwardFirst(OnLists):
    """No backward pass before the last forward pass."""

    hint = "Two lists, one after the other: first all F, then all B."
    after = ("each_action_once",)
    cases = staticmethod(any_number)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        for rank, actions in enumerate(lists):
            kinds = [action.kind for action in actions]
            if "B" in kinds and "F" in kinds[kinds.index("B") :]:
                late = actions[kinds.index("B") :]
                action = next(action for action in late if action.kind == "F")
                return (
                    f"rank {rank} runs {action} after {actions[kinds.index('B')]}. "
                    "Where in its list does the first backward pass belong?"
                )
        return None


class NoRankWaitsForever(OnLists):
    """The lists fit together: no rank waits for a message that never comes."""

    hint = "A backward pass needs its own forward pass, and the backward pass of the next rank."
    after = ("each_action_once",)
    cases = staticmethod(any_number)

    @classmethod
    def wrong(cls, case: Case, lists: Lists) -> str | None:
        return stuck(case, lists)


class NoLongerThanNeeded(InTime):
    """The step takes (m + ranks - 1) forward and backward passes: the ranks agree on the order of micro-batches."""

    hint = (
        "If a rank processes the micro-batches in a different order from its neighbor, it may wait for its first one "
        "until the neighbor runs its last."
    )
    after = ("each_action_once", "no_rank_waits_forever")
    cases = staticmethod(any_number)

    @staticmethod
    def ideal(case: Case) -> float:
        return 3 * (case.m + case.ranks - 1)


class SameGradients(TrainsAsOneProcess):
    """On real ranks, the lists give the loss and the gradients of one process, even if messages carry no tags."""

    after = ("each_action_once", "no_rank_waits_forever")
    cases: ClassVar = [Case(3, 4)]


GPIPE = (EachActionOnce, ForwardFirst, NoRankWaitsForever, NoLongerThanNeeded, SameGradients)
