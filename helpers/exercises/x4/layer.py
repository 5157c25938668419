"""Checks of part 1: the layer. Its numbers are compared in FP64 with the formula."""

from .corrects import CorrectsByAlphaOverRank
from .merges import MergesOnce
from .starts import StartsAsTheBase

LAYER = (StartsAsTheBase, CorrectsByAlphaOverRank, MergesOnce)
