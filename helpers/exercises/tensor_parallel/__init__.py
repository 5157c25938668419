"""Practice checks of tensor parallelism: column- and row-parallel layers, and K/V heads that ranks share."""

from ..base import Part
from .conduct import CONDUCT
from .heads import HEADS
from .layers import LAYERS

PARTS = (
    Part("tensor_parallel.layers", ("Enter", "Leave", "column", "row"), LAYERS + CONDUCT),
    Part("tensor_parallel.heads", ("kv_heads_of", "sum_shared"), HEADS),
)
