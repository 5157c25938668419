"""Practice checks of context parallelism: merging, messages around a ring, ring attention forward and backward."""

from ..base import Part
from .backward import BACKWARD
from .forward import FORWARD
from .merge import MERGE
from .shift import SHIFT

PARTS = (
    Part("context_parallel.merge", ("merge",), MERGE),
    Part("context_parallel.shift", ("shift",), SHIFT),
    Part("context_parallel.forward", ("ring_forward",), FORWARD),
    Part("context_parallel.backward", ("ring_backward",), BACKWARD),
)
