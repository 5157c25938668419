"""X5: ring attention on 2 to 5 ranks. Ten checks of a point each.

All but the first run real ranks, four or five at a time, of which groups of 2 to 5 share a sequence; parts 2 to 4 start
them once each. Outputs and gradients are compared in BF16. Memory is the allocator's, messages and products are seen
where PyTorch dispatches them: no rank may hold what belongs to the whole sequence.
"""

from ..base import Part
from .passing import PASSING
from .ring import RING
from .shard import SHARD
from .train import TRAIN

PARTS: tuple[Part, ...] = (
    Part("x5.shard", ("deal", "shard"), SHARD),
    Part("x5.pass_on", ("pass_on",), PASSING),
    Part("x5.ring", ("ring_attention",), RING),
    Part("x5.train", ("train_step",), TRAIN),
)
