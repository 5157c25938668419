"""What a GPU's allocator reserves, from a replay of its rules: one interval for plans, remedies and dry runs."""

from typing import NamedTuple

from ..core.units import MiB

# cuBLAS's workspace where no GPU is named: a little above PyTorch's default before Hopper (see `Gpu.cublas_workspace`).
CUBLAS_WORKSPACE = 33 * MiB // 4
WORKSPACES = 2  # one for the forward and one for the backward thread
# What the replay cannot know moves reserved memory by about this much: kernels and optimizers of another PyTorch
# version ask in another order, libraries take scratch. Chosen from the published figures in tests/planner/published.py.
BELOW, ABOVE = 0.03, 0.11


class Reserved(NamedTuple):
    """Between which bytes `torch.cuda.max_memory_reserved` will lie on a real GPU."""

    low: int
    high: int


def reserved_between(allocated: int, reserved: int, workspace: int | None = None) -> Reserved:
    """Return the interval around what a replay reserves.

    Args:
        allocated, reserved: bytes at the peaks of the replay.
        workspace: bytes of one cuBLAS workspace; None if unknown.
    """
    workspaces = WORKSPACES * (CUBLAS_WORKSPACE if workspace is None else workspace)
    low = max(allocated, int(reserved * (1 - BELOW)))
    return Reserved(low, max(int(reserved * (1 + ABOVE)), reserved + workspaces))
