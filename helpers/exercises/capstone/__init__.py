"""Practice checks of the capstone: an update without room for gradients, and a last rung of one's own."""

from ..base import Part
from .lean import LEAN
from .open_rung import OPEN_RUNG

PARTS = (
    Part("capstone.lean", ("lean_update",), LEAN),
    Part("capstone.rung", ("prepare", "update"), OPEN_RUNG),
)
