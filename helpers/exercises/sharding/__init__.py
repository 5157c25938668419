"""Practice checks of sharding: ZeRO's partition, reduction and gathering, and a model that is really sharded.

`blocks.py` is the model that the lab and the checks shard, `trained.py` measures it, `diary.py` says in which order
messages come. The lab's pictures are in `drawings`.
"""

from ..base import Part
from .gather import GATHER
from .partition import PARTITION
from .reduce import REDUCE
from .sharded import SHARDED

PARTS = (
    Part("sharding.partition", ("partition",), PARTITION),
    Part("sharding.reduce", ("reduce_gradients",), REDUCE),
    Part("sharding.gather", ("gather_parameters",), GATHER),
    Part("sharding.sharded", ("make_sharded",), SHARDED),
)
