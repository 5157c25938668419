"""Check of the online softmax in Triton: the checks of the one in torch, with a kernel that calls the answer."""

from collections.abc import Callable
from typing import Any

from ..base import Check, Evidence
from ..filled_in import filled_in
from .softmax import MatchesTheSoftmax, OnlineSoftmax, StateMeansWhatItSays, SurvivesLargeScores

MergeTile = Callable[..., Any]


def _kernel(merge_tile: MergeTile) -> OnlineSoftmax:
    if not filled_in(merge_tile):
        raise NotImplementedError
    from .triton_tile import in_a_kernel  # here: Triton is optional

    return in_a_kernel(merge_tile)


def _probe(check: type[Check], seed: int, merge_tile: MergeTile) -> Evidence:
    """Probe the kernel as `check` does. Evidence {"sides": [m, n]} means that two tensors did not fit each other."""
    kernel = _kernel(merge_tile)
    from .triton_tile import SidesDifferError

    try:
        return check.probe(seed, kernel)
    except SidesDifferError as error:
        return {"sides": list(error.args)}


def _judge(check: type[Check], seen: Evidence, expected: Evidence) -> str | None:
    if sides := seen.get("sides"):
        return (
            f"With R = 16, C = 32 and d = 64, a dimension of {sides[0]} was broadcast against one of {sides[1]}. A "
            "factor per row needs `[:, None]`, and a sum over columns is `tl.sum(x, 1)`."
        )
    return check.judge(seen, expected)


class KernelMatchesTheSoftmax(MatchesTheSoftmax):
    """In a kernel, too, weighted / total after each tile is the softmax over all columns so far, times their values."""

    hint = (
        "Which cases of `online_softmax` cannot occur here? The state is never None, and no row is empty.\n"
        "`tl.max(scores, 1)` and `tl.sum(weights, 1)` reduce over columns; `rescale[:, None]` broadcasts over a matrix."
    )

    @staticmethod
    def probe(seed: int, merge_tile: MergeTile) -> Evidence:
        return _probe(MatchesTheSoftmax, seed, merge_tile)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _judge(MatchesTheSoftmax, seen, expected)


class KernelStateMeansWhatItSays(StateMeansWhatItSays):
    """`merge_tile` returns the largest score of each row, the sum of exp(score - largest), and that times values."""

    hint = "In which order are the three returned, and is the first the maximum of old and new?"

    @staticmethod
    def probe(seed: int, merge_tile: MergeTile) -> Evidence:
        return _probe(StateMeansWhatItSays, seed, merge_tile)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _judge(StateMeansWhatItSays, seen, expected)


class KernelSurvivesLargeScores(SurvivesLargeScores):
    """In a kernel, too, scores of several thousand produce no infinity or NaN."""

    hint = "Subtract the new maximum before `tl.exp`, from the scores and from the old maximum."

    @staticmethod
    def probe(seed: int, merge_tile: MergeTile) -> Evidence:
        return _probe(SurvivesLargeScores, seed, merge_tile)

    @staticmethod
    def judge(seen: Evidence, expected: Evidence) -> str | None:
        return _judge(SurvivesLargeScores, seen, expected)


MERGE: tuple[type[Check], ...] = (KernelMatchesTheSoftmax, KernelStateMeansWhatItSays, KernelSurvivesLargeScores)
