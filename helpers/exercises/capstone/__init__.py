"""Practice checks of the capstone: four rungs, an update without room for gradients, and an open rung."""

from ..base import Part
from .lean import LEAN
from .open_rung import OPEN_RUNG
from .stack import STACK

PARTS = (
    Part("capstone.stack", ("accumulate", "checkpoint_blocks", "signum_step", "fold"), STACK),
    Part("capstone.lean", ("lean_update",), LEAN),
    Part("capstone.rung", ("prepare", "update"), OPEN_RUNG),
)
