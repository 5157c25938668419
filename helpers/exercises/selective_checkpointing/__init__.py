"""Practice checks of selective checkpointing: keep what is costly, and move saved tensors elsewhere.

All probes run on the CPU, so that no verdict depends on the machine.
"""

from ..base import Part
from .moved import MOVED
from .policy import POLICY

PARTS = (
    Part("selective_checkpointing.policy", ("keep_costly",), POLICY),
    Part("selective_checkpointing.moved", ("moved",), MOVED),
)
