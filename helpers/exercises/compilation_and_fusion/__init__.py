"""Practice checks of compilation and fusion: one graph, attention by tiles, a loss without its logits."""

from ..base import Part
from .attention import ATTENTION
from .graphs import REPAIRED
from .loss import CHUNKED
from .softmax import SOFTMAX

PARTS = (
    Part("compilation_and_fusion.repair", ("repaired",), REPAIRED),
    Part("compilation_and_fusion.softmax", ("online_softmax",), SOFTMAX),
    Part("compilation_and_fusion.attention", ("tiled_attention",), ATTENTION),
    Part("compilation_and_fusion.chunked", ("chunked_cross_entropy",), CHUNKED),
)
