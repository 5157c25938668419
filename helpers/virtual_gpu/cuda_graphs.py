"""CUDA graphs: what a program captures runs once, at once, and a replay does nothing.

The tensors of the capture stay where they are until the program drops them, as in the graph's own pool. What the pool
keeps besides is not counted.
"""

from collections.abc import Callable
from typing import Any

import torch

from .patches import Patches

_capturing: list["CudaGraph"] = []  # the graph that is being captured
_WHAT = "CUDA graph"


class CudaGraph:
    """Stands for `torch.cuda.CUDAGraph`."""

    leave_out: Callable[[str, str], None] = staticmethod(lambda what, instead: None)

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: Any = None

    def capture_begin(self, pool: Any = None, **_: Any) -> None:
        """Begin: operations run as usual."""
        self.leave_out(_WHAT, "what it captures runs once; replays are not counted")
        self._pool = pool or _pool()
        _capturing.append(self)

    def capture_end(self) -> None:
        """End."""
        _capturing.remove(self)

    def replay(self) -> None:
        """Do nothing."""

    def pool(self) -> Any:
        """Return the id of the memory pool."""
        return self._pool

    def instantiate(self) -> None:
        """Do nothing."""

    def reset(self) -> None:
        """Do nothing."""

    def enable_debug_mode(self) -> None:
        """Do nothing."""

    def debug_dump(self, debug_path: str) -> None:
        """Write nothing."""


_pools = iter(range(1, 2**62))


def _pool() -> tuple[int, int]:
    return (0, next(_pools))


def install(patches: Patches, leave_out: Callable[[str, str], None]) -> None:
    """Put them into torch.cuda.

    Args:
        patches: puts back what was there.
        leave_out: takes note of what a dry run leaves out.
    """
    names = {
        "CUDAGraph": CudaGraph,
        "make_graphed_callables": _uncaptured,
        "is_current_stream_capturing": _is_capturing,
    }
    for owner in (torch.cuda, torch.cuda.graphs):
        patches.put_all(owner, names | {"graph_pool_handle": _pool})
    if not hasattr(torch._C, "_host_emptyCache"):
        patches.put(torch._C, "_host_emptyCache", lambda: None)
    patches.put(CudaGraph, "leave_out", staticmethod(leave_out))
    patches.later(_capturing.clear)


def _is_capturing() -> bool:
    return bool(_capturing)


def _uncaptured(callables: Any, *_: Any, **__: Any) -> Any:
    """Return what is to be captured as it is: it runs operation by operation."""
    CudaGraph.leave_out(_WHAT, "not captured: operations are launched one by one")
    return callables
