"""Practice checks of activation checkpointing: recompute, reproduce, keep what is costly, move the rest.

All probes run on the CPU, so that no verdict depends on the machine.
"""

from ..base import Part
from .moved import MOVED
from .policy import POLICY
from .recompute import RECOMPUTE
from .repeatable import REPEATABLE

PARTS = (
    Part("activation_checkpointing.recompute", ("Recompute",), RECOMPUTE),
    Part("activation_checkpointing.repeatable", ("repeatable",), REPEATABLE),
    Part("activation_checkpointing.policy", ("keep_costly",), POLICY),
    Part("activation_checkpointing.moved", ("moved",), MOVED),
)
