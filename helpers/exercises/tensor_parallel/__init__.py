"""Practice checks of tensor parallelism: layers, shared heads, a loss over a split vocabulary, the split sequence."""

from ..base import Part
from .conduct import CONDUCT
from .heads import HEADS
from .layers import LAYERS
from .loss import LOSS
from .sequence import SEQUENCE

PARTS = (
    Part("tensor_parallel.layers", ("Enter", "Leave", "column", "row"), LAYERS + CONDUCT),
    Part("tensor_parallel.heads", ("kv_heads_of", "sum_shared"), HEADS),
    Part("tensor_parallel.loss", ("cross_entropy",), LOSS),
    Part("tensor_parallel.sequence", ("Gather", "Scatter"), SEQUENCE),
)
