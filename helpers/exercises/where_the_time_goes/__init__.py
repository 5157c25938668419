"""Practice checks of where the time goes: roofline, FLOPs of a block, the time of a step, MFU and HFU.

No check looks at a clock: a busy machine must not decide what is right.
"""

from ..base import Part
from .block import BLOCK
from .roofline import ROOFLINE
from .step import STEP
from .utilization import UTILIZATION

PARTS = (
    Part("where_the_time_goes.roofline", ("operation_seconds",), ROOFLINE),
    Part("where_the_time_goes.block", ("block_flops",), BLOCK),
    Part("where_the_time_goes.step", ("step_time",), STEP),
    Part("where_the_time_goes.utilization", ("utilization",), UTILIZATION),
)
