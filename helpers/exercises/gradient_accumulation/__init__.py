"""Practice checks of gradient accumulation: the loop, by rows and by tokens, on a DDP replica; the largest that fits.

Gradients are compared in FP64 on the CPU, where "equal to rounding" leaves no room for a wrong divisor.
"""

from ..base import Part
from .largest import LARGEST
from .loop import LOOP
from .replica import REPLICA
from .tokens import TOKENS

PARTS = (
    Part("gradient_accumulation.loop", ("accumulate",), LOOP),
    Part("gradient_accumulation.tokens", ("accumulate_tokens",), TOKENS),
    Part("gradient_accumulation.replica", ("accumulate_replica",), REPLICA),
    Part("gradient_accumulation.largest", ("largest_micro_batch",), LARGEST),
)
