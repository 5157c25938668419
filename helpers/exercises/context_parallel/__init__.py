"""Practice checks of context parallel: merging, the exchange round a ring, ring attention both ways, fair pieces."""

from ..base import Part
from .backward import BACKWARD
from .cut import CUT
from .forward import FORWARD
from .merge import MERGE
from .shift import SHIFT

PARTS = (
    Part("context_parallel.merge", ("merge",), MERGE),
    Part("context_parallel.shift", ("shift",), SHIFT),
    Part("context_parallel.forward", ("ring_forward",), FORWARD),
    Part("context_parallel.backward", ("ring_backward",), BACKWARD),
    Part("context_parallel.cut", ("zigzag", "cut"), CUT),
)
