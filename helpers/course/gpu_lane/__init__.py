"""The GPU lane: everything that wants an NVIDIA GPU, in one run that can be cut off and taken up again.

A rented GPU is paid by the minute and may be gone after any of them. So each step is a process of its own with a limit,
its outcome is on disk as soon as it ends, a failure costs no other step, and a call with a budget says when to call
again. The steps themselves belong to others: tests to pytest, measurements and labs to `receipts`.
"""

from .lane import Lane, LaneError
from .steps import LaneStep, lane_steps

__all__ = ["Lane", "LaneError", "LaneStep", "lane_steps"]
