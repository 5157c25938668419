"""Practice checks of failures, and what their lab needs to break jobs: `torchrun`, logs of ranks, made-up jobs.

The learner writes what notices a preemption, the diagnosis of broken jobs from logs of ranks, and that of large ones
from counters of nodes. No check uses a clock: signals are sent
to this process, and logs are read whose fault is known.
"""

from ..base import Part
from .diagnosis import DIAGNOSIS
from .preemption import PREEMPTION
from .suspects import SUSPECTS

PARTS = (
    Part("failures.preemption", ("Preemption",), PREEMPTION),
    Part("failures.diagnosis", ("diagnose",), DIAGNOSIS),
    Part("failures.suspects", ("suspect",), SUSPECTS),
)
