"""Practice checks of sharding: ZeRO's partition, reduction, gathering and hooks.

`blocks.py` is the model that the lab and the checks shard, `trained.py` measures it, `collective_log.py` records
their messages in order. The lab's figures are in `drawings`.
"""

from ..base import Part
from .gather import GATHER
from .hooks import HOOKS
from .partition import PARTITION
from .reduce import REDUCE

PARTS = (
    Part("sharding.partition", ("partition",), PARTITION),
    Part("sharding.reduce", ("reduce_gradients",), REDUCE),
    Part("sharding.gather", ("gather_parameters",), GATHER),
    Part("sharding.hooks", ("add_hooks",), HOOKS),
)
