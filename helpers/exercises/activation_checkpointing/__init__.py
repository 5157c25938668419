"""Practice checks of activation checkpointing: keep the input and run again, and reproduce the first run.

All probes run on the CPU, so that no verdict depends on the machine.
"""

from ..base import Part
from .recompute import RECOMPUTE
from .repeatable import REPEATABLE

PARTS = (
    Part("activation_checkpointing.recompute", ("Recompute",), RECOMPUTE),
    Part("activation_checkpointing.repeatable", ("repeatable",), REPEATABLE),
)
