"""Practice checks of compilation and fusion: attention tile by tile, and a loss whose logits never exist as a whole."""

from ..base import Part
from .attention import ATTENTION
from .loss import CHUNKED
from .softmax import SOFTMAX

PARTS = (
    Part("compilation_and_fusion.softmax", ("online_softmax",), SOFTMAX),
    Part("compilation_and_fusion.attention", ("tiled_attention",), ATTENTION),
    Part("compilation_and_fusion.chunked", ("chunked_cross_entropy",), CHUNKED),
)
