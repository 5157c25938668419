"""Practice checks of activation checkpointing: recompute, repeat, keep what is costly, move the rest, fit a budget.

Everything is probed on the CPU, so that no verdict depends on the machine.
"""

from ..base import Part
from .budget import BUDGET
from .moved import MOVED
from .policy import POLICY
from .recompute import RECOMPUTE
from .repeatable import REPEATABLE

PARTS = (
    Part("activation_checkpointing.recompute", ("Recompute",), RECOMPUTE),
    Part("activation_checkpointing.repeatable", ("repeatable",), REPEATABLE),
    Part("activation_checkpointing.policy", ("keep_costly",), POLICY),
    Part("activation_checkpointing.moved", ("moved",), MOVED),
    Part("activation_checkpointing.fit", ("choose_blocks",), BUDGET),
)
