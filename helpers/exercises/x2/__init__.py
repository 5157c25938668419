"""X2: a batch of 256 as micro-batches. Ten checks of a point each.

Numbers are compared in FP64 on the CPU, where "equal to rounding" leaves no room for a wrong divisor. Two ranks run in
one process, by replay. Memory is measured where the learner's model would run. Hooks record what the model was fed and
what the optimizer stepped with.
"""

from ..base import Part
from .epoch import EPOCH
from .scaled import SCALED
from .step import STEP

PARTS: tuple[Part, ...] = (
    Part("x2.step", ("accumulated_step",), STEP),
    Part("x2.scaled", ("scaled_step",), SCALED),
    Part("x2.epoch", ("train_epoch",), EPOCH),
)
