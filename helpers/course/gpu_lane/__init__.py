"""The GPU lane: everything that needs an NVIDIA GPU, in one run that can be interrupted and resumed.

A rented GPU is paid by the minute and may disappear at any time. So each step is a process of its own with a limit, its
outcome is on disk as soon as it ends, a failure does not stop other steps, and a call with a budget says when to call
again. The steps themselves are defined elsewhere: tests in pytest, measurements and labs in `receipts`.
"""

from .lane import Lane, LaneError
from .steps import LaneStep, lane_steps

__all__ = ["Lane", "LaneError", "LaneStep", "lane_steps"]
