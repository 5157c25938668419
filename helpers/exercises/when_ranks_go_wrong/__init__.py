"""Practice checks of ranks that go wrong, and what their lab shows: the flight recorder, bars of waiting times.

The learner writes the average over ranks with unequal rows, and finds from the records of all ranks which is out of
step.
"""

from ..base import Part
from .average import AVERAGE
from .out_of_step import OUT_OF_STEP

PARTS = (
    Part("when_ranks_go_wrong.average", ("average_gradients",), AVERAGE),
    Part("when_ranks_go_wrong.out_of_step", ("out_of_step",), OUT_OF_STEP),
)
