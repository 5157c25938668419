"""Practice checks of compilation and fusion: one graph, and a backend that counts graphs and their runs."""

# Says how Triton runs its kernels where there is no GPU, before the checks import torch._dynamo, which imports Triton.
from ...core.compiler import why_no_compiler as why_no_compiler
from ..base import Part
from .backend import BACKEND
from .graphs import REPAIRED

PARTS = (
    Part("compilation_and_fusion.repair", ("repaired",), REPAIRED),
    Part("compilation_and_fusion.backend", ("counting_backend",), BACKEND),
)
