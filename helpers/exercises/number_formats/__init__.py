"""Practice checks of number formats: gaps, rounding to nearest, stochastic rounding, compensated sums."""

from ..base import Part
from .gap import GAP
from .kahan import KAHAN
from .rounding import ROUNDING
from .stochastic import STOCHASTIC

PARTS = (
    Part("number_formats.gap", ("gap",), GAP),
    Part("number_formats.round", ("round_to",), ROUNDING),
    Part("number_formats.stochastic", ("stochastic_round",), STOCHASTIC),
    Part("number_formats.kahan", ("kahan_add",), KAHAN),
)
