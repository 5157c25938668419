"""Practice checks of FSDP: a sharded model, and a training step on it that accumulates and clips.

The model and its measurements are those of the lab on sharding by hand.
"""

from ..base import Part
from .sharded import SHARDED
from .step import STEP

PARTS = (
    Part("fully_shard.sharded", ("make_sharded",), SHARDED),
    Part("fully_shard.step", ("accumulated_step",), STEP),
)
