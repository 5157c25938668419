"""Practice checks of lean optimizers: moments in 8 bits, Adam with them, the step in the backward pass."""

from ..base import Part
from .adam import ADAM
from .backward import BACKWARD
from .blocks import BLOCKS

PARTS = (
    Part("lean_optimizers.blocks", ("encode", "decode"), BLOCKS),
    Part("lean_optimizers.adam", ("Adam8",), ADAM),
    Part("lean_optimizers.backward", ("step_in_backward",), BACKWARD),
)
