"""Practice checks of compilation and fusion: one graph, attention by tiles, a loss without its logits."""

# Says how Triton runs its kernels where there is no GPU, before the checks import torch._dynamo, which imports Triton.
from ...core.compiler import why_no_compiler as why_no_compiler
from ..base import Part
from .attention import ATTENTION
from .graphs import REPAIRED
from .loss import CHUNKED
from .merge import MERGE
from .softmax import SOFTMAX

PARTS = (
    Part("compilation_and_fusion.repair", ("repaired",), REPAIRED),
    Part("compilation_and_fusion.softmax", ("online_softmax",), SOFTMAX),
    Part("compilation_and_fusion.attention", ("tiled_attention",), ATTENTION),
    Part("compilation_and_fusion.merge", ("merge_tile",), MERGE, needs="triton"),
    Part("compilation_and_fusion.chunked", ("chunked_cross_entropy",), CHUNKED),
)
