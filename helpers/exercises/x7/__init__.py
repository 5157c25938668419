"""X7: a model that fits on no rank. Ten checks of a point each.

All checks of a part judge what the same ranks saw: bytes, messages, and how far the numbers are from those of one
process.
"""

from ..base import Part
from .build import BUILD
from .resume import RESUME
from .step import STEP

PARTS: tuple[Part, ...] = (
    Part("x7.build", ("build",), BUILD),
    Part("x7.step", ("train_step",), STEP),
    Part("x7.resume", ("save", "load"), RESUME),
)
