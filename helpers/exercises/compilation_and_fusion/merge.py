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


class KernelMatchesTheSoftmax(MatchesTheSoftmax):
    """In a kernel, too, weighted / total after each tile is the softmax over all columns so far, times their values."""

    hint = (
        "Which cases of `online_softmax` cannot occur here? The state is never None, and no row is empty.\n"
        "`tl.max(scores, 1)` and `tl.sum(weights, 1)` reduce over columns; `rescale[:, None]` broadcasts over a matrix."
    )

    @staticmethod
    def probe(seed: int, merge_tile: MergeTile) -> Evidence:
        return MatchesTheSoftmax.probe(seed, _kernel(merge_tile))


class KernelStateMeansWhatItSays(StateMeansWhatItSays):
    """`merge_tile` returns the largest score of each row, the sum of exp(score - largest), and that times values."""

    hint = "In which order are the three returned, and is the first the maximum of old and new?"

    @staticmethod
    def probe(seed: int, merge_tile: MergeTile) -> Evidence:
        return StateMeansWhatItSays.probe(seed, _kernel(merge_tile))


class KernelSurvivesLargeScores(SurvivesLargeScores):
    """In a kernel, too, scores of several thousand produce no infinity or NaN."""

    hint = "Subtract the new maximum before `tl.exp`, from the scores and from the old maximum."

    @staticmethod
    def probe(seed: int, merge_tile: MergeTile) -> Evidence:
        return SurvivesLargeScores.probe(seed, _kernel(merge_tile))


MERGE: tuple[type[Check], ...] = (KernelMatchesTheSoftmax, KernelStateMeansWhatItSays, KernelSurvivesLargeScores)
