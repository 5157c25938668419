"""Practice checks of where the time goes: roofline, FLOPs of a block, a reader of traces, a step, MFU, a clinic.

No check looks at a clock: a busy machine must not decide what is right. Traces are synthetic (`made_trace.py`).
"""

from ..base import Part
from .block import BLOCK
from .clinic import CLINIC
from .cure import CURE
from .reader import READER
from .roofline import ROOFLINE
from .step import STEP
from .utilization import UTILIZATION

PARTS = (
    Part("where_the_time_goes.roofline", ("operation_seconds",), ROOFLINE),
    Part("where_the_time_goes.block", ("block_flops",), BLOCK),
    Part("where_the_time_goes.trace", ("self_times",), READER),
    Part("where_the_time_goes.step", ("step_time",), STEP),
    Part("where_the_time_goes.utilization", ("utilization",), UTILIZATION),
    Part("where_the_time_goes.clinic", ("signs", "diagnose"), CLINIC),
    Part("where_the_time_goes.cure", ("accuracy",), CURE),
)
