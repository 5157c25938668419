"""Practice checks of pipelines: a stage's two passes; GPipe, 1F1B and an interleaved schedule.

Lists of actions are not compared with reference lists. They are simulated, and the result is compared with the
requirements of the contract, so any order of actions that meets them passes.
"""

from ..base import Part
from .gpipe import GPIPE
from .interleaved import INTERLEAVED
from .one_f_one_b import ONE_F_ONE_B
from .stage import STAGE

PARTS = (
    Part("pipeline.stage", ("run_forward", "run_backward"), STAGE),
    Part("pipeline.gpipe", ("gpipe",), GPIPE),
    Part("pipeline.one_f_one_b", ("one_f_one_b",), ONE_F_ONE_B),
    Part("pipeline.interleaved", ("interleaved",), INTERLEAVED),
)
