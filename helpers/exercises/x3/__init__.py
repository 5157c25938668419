"""X3: training on two ranks. Ten checks of a point each.

All of them run real ranks. Numbers are compared in FP64, where "the same as one process" leaves no room for a wrong
divisor; what was sent is counted, and the data set itself records which rank saw which row. `broken` has programs to
diagnose, which carry no points.
"""

from ..base import Part
from .epoch import EPOCH
from .evaluate import EVALUATE
from .worker import WORKER

PARTS: tuple[Part, ...] = (
    Part("x3.epoch", ("train_epoch",), EPOCH),
    Part("x3.evaluate", ("evaluate",), EVALUATE),
    Part("x3.worker", ("worker",), WORKER),
)
