"""The GPU lane: everything that needs an NVIDIA GPU, in one run that can be interrupted and resumed.

You pay for a rented GPU by the minute, and it may disappear at any time. So each step runs in its own process with a
time limit, its outcome is saved to disk as soon as it ends, a failure does not stop the other steps, and the exit code
of a run with a budget shows whether steps are left. The steps are defined elsewhere: tests in pytest, measurements and
labs in `receipts`.
"""

from .lane import Lane, LaneError
from .steps import LaneStep, lane_steps

__all__ = ["Lane", "LaneError", "LaneStep", "lane_steps"]
