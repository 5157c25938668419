"""Practice checks of failures, and what their lab needs to break jobs: `torchrun`, logs of ranks, made-up jobs.

The learner writes what notices a preemption, and the diagnosis of broken jobs. No check uses a clock: signals are sent
to this process, and logs are read whose fault is known.
"""

from ..base import Part
from .diagnosis import DIAGNOSIS
from .preemption import PREEMPTION

PARTS = (
    Part("failures.preemption", ("Preemption",), PREEMPTION),
    Part("failures.diagnosis", ("diagnose",), DIAGNOSIS),
)
