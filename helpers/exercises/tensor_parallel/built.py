"""What the lab builds and later labs use: the course's version of it."""

from ..reference.tensor_parallel import Enter, Leave, column, kv_heads_of

__all__ = ["Enter", "Leave", "column", "kv_heads_of"]
