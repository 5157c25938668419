"""X1: mixed-precision training of a CNN. Ten checks of a point each.

The scaler's checks feed gradients by hand, so that every branch is met. The training step's checks hand it
PyTorch's own `GradScaler`, so that a mistake in the learner's scaler is not counted twice.
"""

from ..base import Part
from .compare import COMPARE
from .scaler import SCALER
from .step import STEP

PARTS: tuple[Part, ...] = (
    Part("x1.scaler", ("DynamicLossScaler",), SCALER),
    Part("x1.step", ("train_step",), STEP),
    Part("x1.compare", ("train", "train_step"), COMPARE),
)
