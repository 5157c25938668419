"""Practice checks of fused kernels: the online softmax, attention by tiles, a loss without its logits."""

# Says how Triton runs its kernels where there is no GPU, before anything imports Triton.
from ...core.compiler import why_no_compiler as why_no_compiler
from ..base import Part
from .attention import ATTENTION
from .loss import CHUNKED
from .merge import MERGE
from .softmax import SOFTMAX

PARTS = (
    Part("fused_kernels.softmax", ("online_softmax",), SOFTMAX),
    Part("fused_kernels.attention", ("tiled_attention",), ATTENTION),
    Part("fused_kernels.merge", ("merge_tile",), MERGE, needs="triton"),
    Part("fused_kernels.chunked", ("chunked_cross_entropy",), CHUNKED),
)
