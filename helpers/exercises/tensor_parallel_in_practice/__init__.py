"""Practice checks of what surrounds a split block: a loss over a split vocabulary, and the split sequence."""

from ..base import Part
from .loss import LOSS
from .sequence import SEQUENCE

PARTS = (
    Part("tensor_parallel_in_practice.loss", ("cross_entropy",), LOSS),
    Part("tensor_parallel_in_practice.sequence", ("Gather", "Scatter"), SEQUENCE),
)
