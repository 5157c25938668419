"""Practice checks of the lab on traces: self times, three signs of a slow loop, and a loop that is fixed.

No check looks at a clock: a busy machine must not decide what is right. Traces are synthetic (`made_trace.py`).
"""

from ..base import Part
from .clinic import CLINIC
from .cure import CURE
from .self_times import SELF_TIMES

PARTS = (
    Part("traces.self_times", ("self_times",), SELF_TIMES),
    Part("traces.clinic", ("signs", "diagnose"), CLINIC),
    Part("traces.cure", ("accuracy",), CURE),
)
